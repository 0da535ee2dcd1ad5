// The theory's curves as SVG, a table of the same numbers, and where this server stands on them.
import { element, number } from "./view.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 720, HEIGHT = 420, LEFT = 48, RIGHT = 84, TOP = 16, BOTTOM = 48;

function drawn(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

const known = (here) => here && [here.alpha, here.gamma, here.speedup].every((value) => Number.isFinite(value));

export function sentence(here) {
  if (!known(here)) return "This server has not speculated yet: generate something, then refresh.";
  const cost = Number.isFinite(here.c) ? `, one costs ${number(here.c, 3)} of a target run (c)` : "";
  return `This server: ${number(100 * here.alpha, 0)} % of judged guesses are kept (α ${number(here.alpha)})${cost}, and it makes `
    + `${number(here.gamma, 1)} guesses per run (γ): ${number(here.speedup)} times as fast as plain decoding, by the theory.`;
}

function scales(curves, here) {
  const gammas = curves.flatMap((curve) => curve.gamma);
  const speeds = curves.flatMap((curve) => curve.speedup);
  if (known(here)) {
    gammas.push(here.gamma);
    speeds.push(here.speedup);
  }
  const widest = Math.max(1, ...gammas), highest = Math.max(1, Math.ceil(Math.max(1, ...speeds)));
  return {
    widest,
    highest,
    x: (gamma) => LEFT + (gamma / widest) * (WIDTH - LEFT - RIGHT),
    y: (speedup) => HEIGHT - BOTTOM - (Math.max(0, speedup) / highest) * (HEIGHT - TOP - BOTTOM),
  };
}

function axes(svg, { widest, highest, x, y }) {
  const every = Math.max(1, Math.ceil(highest / 6));
  for (let value = 0; value <= highest; value += every) {
    svg.append(drawn("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, `${value}×`));
  }
  const wide = Math.max(1, Math.ceil(widest / 8));
  for (let value = 0; value <= widest; value += wide) {
    svg.append(drawn("text", { x: x(value), y: HEIGHT - BOTTOM + 20, "text-anchor": "middle" }, String(value)));
  }
  svg.append(drawn("path", { class: "axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` }));
  svg.append(drawn("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, "guesses per run, γ"));
}

// Names at the ends of curves, moved apart where they would overlap.
function names(svg, curves, { x, y }) {
  const ends = curves
    .map((curve) => ({ name: `α ${number(curve.alpha)}`, x: x(curve.gamma.at(-1)) + 8, y: y(curve.speedup.at(-1)) + 4 }))
    .sort((a, b) => a.y - b.y);
  let above = -Infinity;
  for (const end of ends) {
    above = Math.max(end.y, above + 17);
    svg.append(drawn("text", { x: end.x, y: above }, end.name));
  }
}

export function chart({ curves, here }) {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-labelledby": "chart-title" });
  svg.append(drawn("title", { id: "chart-title" }, `Speed-up over guesses per run, for ${curves.length} acceptance rates. ${sentence(here)}`));
  const scale = scales(curves, here);
  axes(svg, scale);
  curves.forEach((curve, place) => {
    const points = curve.gamma.map((gamma, i) => `${scale.x(gamma).toFixed(1)},${scale.y(curve.speedup[i]).toFixed(1)}`);
    svg.append(drawn("polyline", { class: `curve ${["first", "second", "third"][place % 3]}`, points: points.join(" ") }));
  });
  names(svg, curves, scale);
  if (known(here)) {
    const x = scale.x(here.gamma), y = scale.y(here.speedup), right = x < WIDTH / 2;
    svg.append(drawn("path", { class: "here", d: `M${x} ${y - 9}l9 9l-9 9l-9 -9z` }));
    svg.append(drawn("text", { class: "here-name", x: x + (right ? 14 : -14), y: y - 10, "text-anchor": right ? "start" : "end" }, "this server"));
  }
  return svg;
}

export function fillTable(table, curves) {
  const gammas = curves[0]?.gamma ?? [];
  const head = element("tr");
  head.append(element("th", "", "γ"), ...curves.map((curve) => element("th", "", `α ${number(curve.alpha)}`)));
  const rows = gammas.map((gamma, i) => {
    const row = element("tr");
    row.append(element("th", "", String(gamma)), ...curves.map((curve) => element("td", "", number(curve.speedup[i]))));
    return row;
  });
  for (const cell of head.children) cell.scope = "col";
  for (const row of rows) row.firstElementChild.scope = "row";
  table.replaceChildren(head, ...rows);
}
