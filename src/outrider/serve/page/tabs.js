// Tabs by mouse and keys: arrows, Home and End move between them.

export function makeTabs(tablist, onShow) {
  const tabs = [...tablist.querySelectorAll('[role="tab"]')];
  const show = (chosen) => {
    for (const tab of tabs) {
      const selected = tab === chosen;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !selected;
    }
    onShow(chosen.id);
  };
  for (const tab of tabs) tab.addEventListener("click", () => show(tab));
  tablist.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const tab = tabs[(to + tabs.length) % tabs.length];
    tab.focus();
    show(tab);
  });
}
