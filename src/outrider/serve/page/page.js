// The page: a form, two runs of its prompt one after the other, and the theory's curves.
import { completion, getJson, Problem } from "./api.js";
import { identical, Run } from "./run.js";
import { makeTabs } from "./tabs.js";
import { chart, fillTable, sentence } from "./theory.js";
import { appendStep, appendText, byId, number, percent, showProblem, showTiles } from "./view.js";

const STATUS_EVERY = 10000; // milliseconds
let running = null; // the AbortController of the request under way
let statusTimer = 0;

const say = (text) => { byId("status").textContent = text; }; // read out by screen readers: never token by token
const key = () => byId("key").value.trim();

// --- what the server is -------------------------------------------------------------------------------------

async function showServer() {
  clearTimeout(statusTimer);
  if (!document.hidden) {
    try {
      const now = await getJson("/v1/outrider/status", key());
      const load = `${now.running ?? 0} of ${now.slots ?? "?"} slots in use${now.waiting ? `, ${now.waiting} waiting` : ""}`;
      byId("server").textContent = `${now.model}, drafted for by ${now.draft ?? "none"} · ${now.engine}, ${now.dtype} · ${load}`;
    } catch (error) {
      byId("server").textContent = error instanceof Problem ? error.message : "The server gave no status.";
      if (error.kind === "key") byId("key-details").open = true;
    }
  }
  statusTimer = setTimeout(showServer, STATUS_EVERY);
}

// --- runs ---------------------------------------------------------------------------------------------------

function request(enabled) {
  const gamma = byId("gamma").value; // a plain run makes no guesses
  const prompt = byId("prompt").value;
  const chat = byId("kind").value === "chat";
  return {
    path: chat ? "/v1/chat/completions" : "/v1/completions",
    body: {
      ...(chat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
      max_tokens: Number(byId("max-tokens").value),
      temperature: Number(byId("temperature").value),
      seed: Number(byId("seed").value),
      speculation: { enabled, trace: true, ...(enabled && gamma !== "auto" ? { gamma: Number(gamma) } : {}) },
    },
  };
}

async function follow(name, asked, signal) {
  const run = new Run(performance.now());
  const box = byId(`${name}-text`), note = byId(`${name}-note`), speculative = name === "speculative";
  note.textContent = "reading the prompt…";
  for await (const chunk of completion(asked.path, asked.body, key(), signal)) {
    const { parts, step, tokens } = run.add(chunk, performance.now());
    appendText(box, parts);
    if (step && tokens.length && speculative) appendStep(byId("trace"), step, tokens);
    if (speculative) showTiles(run, step);
    note.textContent = `${run.ids.length} tokens, ${number(run.speed, 1)} tokens/s`;
  }
  return run;
}

function begin() {
  showProblem(null);
  for (const id of ["speculative-text", "plain-text", "trace"]) byId(id).replaceChildren();
  for (const id of ["speculative-note", "plain-note", "tile-speed-note", "tile-why", "verdict"]) byId(id).textContent = "";
  for (const id of ["tile-acceptance", "tile-per-run", "tile-speed", "tile-gamma"]) byId(id).textContent = "–";
  byId("results").hidden = false;
  const compare = byId("compare").checked;
  byId("plain-panel").hidden = !compare;
  byId("plain-panel").parentElement.classList.toggle("alone", !compare);
}

function setRunning(controller) {
  running = controller;
  byId("start").disabled = controller !== null;
  byId("cancel").disabled = controller === null;
}

async function generate() {
  if (running || !byId("form").reportValidity()) return;
  const asked = [request(true), request(false)], compare = byId("compare").checked; // both as the form is now
  begin();
  const controller = new AbortController();
  const hadFocus = document.activeElement === byId("start");
  setRunning(controller);
  if (hadFocus) byId("cancel").focus(); // a disabled button would lose it
  try {
    say(compare ? "Speculative run under way; the plain run comes after it." : "Speculative run under way.");
    const ours = await follow("speculative", asked[0], controller.signal);
    const kept = ours.examined ? `${percent(ours.acceptance)} of judged guesses accepted` : "no guesses were made";
    const told = `Finished: ${ours.ids.length} tokens in ${ours.steps} target runs, ${kept}.`;
    if (compare) {
      say("Plain run under way, for comparison.");
      showVerdict(ours, await follow("plain", asked[1], controller.signal));
    }
    say(told);
  } catch (error) {
    stopped(error);
  } finally {
    const backToStart = document.activeElement === byId("cancel");
    setRunning(null);
    if (backToStart) byId("start").focus();
    showServer();
  }
}

function stopped(error) {
  if (error.name === "AbortError") {
    say("Cancelled. What had come is kept; the texts were not compared.");
    return;
  }
  say("Stopped by an error.");
  showProblem(error instanceof Problem ? error : new Problem("server", `The page failed: ${error.message}`));
  if (!(error instanceof Problem)) throw error; // a bug of the page: the console names its place
  if (error.kind === "key") {
    byId("key-details").open = true;
    byId("key").focus();
  }
}

function showVerdict(ours, plain) {
  const ratio = ours.speed && plain.speed ? ours.speed / plain.speed : null;
  const same = identical(ours, plain);
  const speed = ratio ? `Speculation was ${number(ratio)} times as fast as the plain run` : "Too few tokens to compare speeds";
  byId("tile-speed-note").textContent = `plain run: ${number(plain.speed, 1)}`;
  byId("verdict").textContent = `${speed}; the two texts are ${same ? "identical, token by token" : "DIFFERENT"}.`;
}

// --- theory -------------------------------------------------------------------------------------------------

async function showTheory() {
  try {
    const theory = await getJson("/v1/outrider/theory", key());
    byId("here").textContent = sentence(theory.here);
    byId("chart").replaceChildren(chart(theory));
    fillTable(byId("curves"), theory.curves);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    byId("here").textContent = error.message;
  }
}

// --- keys and buttons ---------------------------------------------------------------------------------------

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    generate();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
byId("cancel").addEventListener("click", () => running?.abort());
byId("retry").addEventListener("click", generate);
byId("refresh").addEventListener("click", showTheory);
byId("key").addEventListener("change", showServer);
document.addEventListener("visibilitychange", showServer);
makeTabs(document.querySelector('[role="tablist"]'), (id) => {
  if (id === "tab-theory") showTheory();
});
showServer();
