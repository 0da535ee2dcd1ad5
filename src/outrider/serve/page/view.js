// What a run looks like: coloured text, one line per step, numbers.

export const byId = (id) => document.getElementById(id);

const MOST_LINES = 500;
const TITLES = {
  accepted: "accepted guess",
  corrected: "the target's correction",
  bonus: "the target's own token, all guesses kept",
  plain: "no guess was made",
};

export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

export const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(0)} %`);

// Keeps the end in view while text comes, unless the reader has scrolled up.
function following(box, change) {
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  change();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

export function appendText(box, parts) {
  following(box, () => {
    for (const { text, origin } of parts) {
      const span = element("span", `token ${TITLES[origin] ? origin : "plain"}`, text);
      span.title = TITLES[origin] ?? origin;
      box.append(span);
    }
  });
}

const shown = (token) => token.text.replaceAll("\n", "⏎");

// A line of the trace: guesses kept, the rejected one, those behind it that were never judged, the target's own token.
export function appendStep(list, step, tokens) {
  const line = element("li");
  line.append(element("span", "", String(step.index)));
  const guesses = element("span", "guesses");
  const own = tokens.filter((token) => token.origin !== "accepted");
  const heard = (text) => element("span", "heard", text);
  const kept = tokens.filter((token) => token.origin === "accepted");
  if (kept.length) guesses.append(heard(`${kept.length} accepted: `));
  for (const token of kept) guesses.append(element("span", "token accepted", shown(token)));
  const rejected = own.length ? step.drafted.slice(step.accepted) : [];
  rejected.forEach((token, place) => {
    guesses.append(heard(place ? "; not judged: " : "; rejected: "));
    guesses.append(element("del", place ? "token unread" : "token rejected", shown(token)));
  });
  for (const token of own) {
    guesses.append(heard(`; ${token.origin}: `));
    guesses.append(element(token.origin === "corrected" ? "ins" : "span", `token ${token.origin}`, shown(token)));
  }
  const cost = Number.isFinite(step.seconds) ? ` ${(1000 * step.seconds).toFixed(0)} ms` : "";
  const fewer = step.drafted.length < step.gamma ? ` (${step.drafted.length} made)` : ""; // a drafter may stop itself
  const note = element("span", "cost", `γ ${step.gamma}${fewer}${cost}`);
  if (step.why) note.title = step.why;
  line.append(guesses, note);
  following(list, () => {
    list.append(line);
    while (list.childElementCount > MOST_LINES) list.firstElementChild.remove();
  });
}

export function showTiles(run, step) {
  byId("tile-acceptance").textContent = percent(run.acceptance);
  byId("tile-acceptance-note").textContent = run.examined ? `${run.accepted} of ${run.examined} judged` : "no guesses so far";
  byId("tile-per-run").textContent = number(run.tokensPerRun);
  byId("tile-speed").textContent = number(run.speed, 1);
  if (step) {
    byId("tile-gamma").textContent = String(step.gamma);
    byId("tile-why").textContent = step.why ?? "";
  }
}

export function showProblem(problem) {
  byId("problem").hidden = !problem;
  byId("problem-text").textContent = problem?.message ?? "";
  byId("retry").hidden = !problem || !["down", "full", "broken", "server"].includes(problem.kind);
}
