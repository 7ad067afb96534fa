// The page: files in, runs out, one choice of token that every panel follows. Knows every element by id.

import { showDepth, showLength } from "./charts.js";
import { $, make, recall, remember } from "./dom.js";
import { showToken, sayToken } from "./inspect.js";
import { Lane, PHASES } from "./lane.js";
import { assign, legend } from "./look.js";
import { Plain, Race, Recorded } from "./race.js";
import { embedded, read } from "./reader.js";
import { byDepth, byLength, origins, plainMs } from "./stats.js";
import { label, number, percent, preferred, speak, t } from "./strings.js";
import { showComparison, showRun, text as plain } from "./summary.js";
import { Text } from "./text.js";
import { showTree } from "./tree.js";
import { TraceError } from "./trace.js";

const root = document.documentElement;
const state = { files: [null, null], chosen: [0, 0], reading: null };

const words = new Text($("text"), { choose, peek });
const lane = new Lane($("lane"), $("hand"), { pick: (side, step) => choose(side, runs()[side].first[step]), peek: peekStep });
const controls = { play: $("play"), scrub: $("scrub"), clock: $("clock"), speed: $("speed"), changed: playing };
const race = new Race({ left: $("drafted"), right: $("plain"), controls, tick });

language(preferred(recall("language", null), navigator.language));
theme(recall("theme", null));
marks(recall("marks", true));
wire();
const data = embedded(document.getElementById("data"));
if (data) open(data, 0);

/** The runs on show: of the first file, and of the second if there is one. */
function runs() {
  return state.files.filter(Boolean).map(({ trace, at }) => trace.runs[at]);
}

/** Read a file and show it. Whatever goes wrong, what is on show stays. */
async function open(file, side) {
  state.reading?.abort();
  const reading = (state.reading = new AbortController());
  $("reading").hidden = true;
  const timer = setTimeout(() => reading === state.reading && ($("reading").hidden = false), 200);
  const progress = (done, size) => {
    const values = { name: file.name, done: number(done / 1e6, 1), size: number(size / 1e6, 1), share: percent(done / size) };
    $("reading-text").textContent = t("readingFile", values);
    $("reading-bar").value = done / size;
  };
  progress(0, Math.max(1, file.size));
  try {
    const trace = await read(file, { progress, signal: reading.signal });
    if (reading !== state.reading) return;
    exchange(side === 0 ? [{ name: file.name, trace, at: 0 }, null] : [state.files[0], { name: file.name, trace, at: 0 }]);
  } catch (error) {
    if (reading === state.reading && error.name !== "AbortError") fail(error, file.name);
  } finally {
    clearTimeout(timer);
    if (reading === state.reading) $("reading").hidden = true;
  }
}

/** Show other files; if they cannot be shown, those from before are again. */
function exchange(files) {
  const before = state.files;
  state.files = files;
  try {
    notices();
    show(true);
  } catch (error) {
    state.files = before;
    if (before[0]) show(true);
    throw error;
  }
}

function fail(error, name) {
  const known = error instanceof TraceError;
  const values = { name, ...(known ? error.values : { reason: String(error?.message ?? error) }) };
  const kind = known ? error.kind : "unreadable";
  const stays = state.files[0] ? t("stays") : "";
  notice(true, t(`e_${kind}`, values), [t(`e_${kind}Help`, values), stays].filter(Boolean).join(" "));
}

/** What has to be said about the files on show. */
function notices() {
  $("notices").replaceChildren();
  for (const { name, trace } of state.files.filter(Boolean)) {
    const { runs: [run], full, steps, cut, damaged } = trace;
    if (full) notice(false, t("limited", { name, steps: number(steps) }), t("limitedHelp"));
    if (cut) notice(false, t("cut", { name, steps: number(steps) }), t("cutHelp"));
    if (damaged) notice(false, t("damaged", { name, lines: number(damaged) }), t("damagedHelp"));
    if (run.footer?.error) notice(true, t("ended", { name }), plain(run.footer.error));
    if (run.tokens && !run.pieces.known) notice(false, t("noPieces", { name }), t("noPiecesHelp"));
  }
}

function notice(failed, title, help) {
  const close = make("button", "plain", t("close"));
  const node = make("div", failed ? "notice failed" : "notice", make("p", "", make("b", "", title), " ", help), close);
  if (failed) node.setAttribute("role", "alert");
  close.addEventListener("click", () => node.remove());
  $("notices").append(node);
}

/** Draw everything anew for the runs on show. */
function show(begin) {
  const [one, other] = runs();
  $("welcome").hidden = true;
  $("view").hidden = $("other").hidden = false;
  assign(origins(...runs()).map(([name]) => name));
  const differs = other ? compare() : null;
  $("heads").hidden = !other;
  if (!other) document.querySelector(".compared")?.remove();
  if (begin) state.chosen = [0, differs ?? firstKept(one)];
  words.show(runs(), differs);
  lane.show(runs());
  describe();
  playback(begin);
  choose(...state.chosen);
}

/** What has words in it, and so changes with the language. */
function describe() {
  const [one] = runs();
  state.seen = null;
  $("name").textContent = state.files.filter(Boolean).map(({ name }) => name).join("  ·  ");
  document.title = `${state.files[0].name} · sooner`;
  chooser();
  showRun({ model: $("model"), settings: $("settings"), facts: $("facts"), figures: $("figures") }, one);
  legend($("legend"), origins(...runs()));
  charts();
  $("phases").replaceChildren(...PHASES.map((name) => make("span", "", swatch(name), t(`phase_${name}`))));
}

/** The charts of the first run; of two, the one whose token is chosen. */
function charts() {
  const side = runs()[1] ? state.chosen[0] : 0;
  delete $("charts").dataset.side;
  if (runs()[1]) $("charts").dataset.side = "AB"[side];
  showDepth($("by-depth"), byDepth(runs()[side]));
  showLength($("by-length"), byLength(runs()[side]));
}

function swatch(name) {
  const node = make("i", "swatch");
  node.style.setProperty("--c", `var(--${name})`);
  return node;
}

function compare() {
  return showComparison($("heads"), state.files.map(({ name }, side) => ({ name, run: runs()[side] })));
}

/** Several requests or answers in one file: one is on show. */
function chooser() {
  const { trace, at } = state.files[0];
  $("runs").hidden = trace.runs.length < 2;
  $("runs").replaceChildren(...trace.runs.map((run, i) => new Option(t("runName", { number: i + 1, tokens: number(run.tokens) }), i)));
  $("runs").value = at;
}

/** The first token of the first step that kept a guess: there is something to see. */
function firstKept(run) {
  const step = run.kept.findIndex((count) => count > 1);
  return step < 0 ? Math.min(run.tokens - 1, run.first[1] ?? 0) : run.first[step];
}

function playback(begin) {
  const [one, other] = runs();
  const cost = plainMs(one);
  const second = other ? new Recorded(other) : cost && one.nodes.some(Boolean) ? new Plain(one, cost.ms) : null;
  const titles = other ? state.files.map(({ name }, i) => `${"AB"[i]} · ${name}`) : [t(one.nodes.some(Boolean) ? "withDraft" : "without"), t("without")];
  const at = race.ms;
  race.set([new Recorded(one), second], titles, begin);
  if (!begin) race.seek(at);
  $("verdict").replaceChildren(...verdict(one, other, cost, second));
}

function verdict(one, other, cost, second) {
  if (!second || !one.duration || !second.duration) return [];
  const later = one.tokens - (one.first[1] ?? 0);
  const ratio = other ? second.duration / one.duration : (cost.ms * later) / one.duration;
  const values = { ratio: number(ratio, 2), one: number(one.duration / 1000, 2), other: number(second.duration / 1000, 2) };
  const [kind, why] = other ? ["raced", ""] : [ratio > 1 ? "sooner" : "later", ` ${t(`from_${cost.from}`)}`];
  return [make("b", "", t("times", values)), " ", t(kind, values), why];
}

/** Choose a token: every panel follows. */
function choose(side, token) {
  const run = runs()[side];
  if (!run?.tokens) return empty();
  const other = side !== state.chosen[0];
  state.chosen = [side, Math.max(0, Math.min(run.tokens - 1, token))];
  if (other) charts();
  words.mark(...state.chosen, true);
  lane.choose(side, run.stepOf(state.chosen[1]));
  inspect(...state.chosen);
  return undefined;
}

function empty() {
  $("token").replaceChildren(make("p", "hint", t("noSteps")));
  $("tree").replaceChildren();
}

/** The pointer is over a token: the panels beside the text follow it, and go back to the chosen one after. */
function peek(side, token) {
  if (token === null) [side, token] = state.chosen;
  inspect(side, token);
}

function peekStep(side, step) {
  const run = runs()[side];
  if (!run?.tokens) return;
  if (step === null) [side, step] = [state.chosen[0], runs()[state.chosen[0]].stepOf(state.chosen[1])];
  inspect(side, Math.min(runs()[side].first[step], runs()[side].tokens - 1));
}

function inspect(side, token) {
  const run = runs()[side];
  if (!run?.tokens || state.seen === `${side}:${token}`) return;
  state.seen = `${side}:${token}`;
  const step = run.stepOf(token);
  showToken($("token"), run, token);
  showTree($("tree"), run, step, token - run.first[step]);
  $("moment").textContent = moment(run, step);
}

function moment(run, step) {
  const at = number(run.ended(step) / 1000, 2);
  const count = run.first[step + 1] - run.first[step];
  const values = { step: number(step + 1), at, took: number(run.took(step), 1), drafted: run.nodes[step], kept: run.kept[step], count };
  return t("moment", values);
}

function tick(ms) {
  lane.point(ms < race.duration ? ms : null);
}

function playing(on) {
  $("race").classList.toggle("playing", on);
  label($("play"), on ? "pause" : "play");
}

function wire() {
  for (const [button, input] of [["open", "file"], ["drop", "file"], ["other", "second"]]) {
    $(button).addEventListener("click", () => $(input).click());
  }
  for (const [side, input] of [$("file"), $("second")].entries()) {
    input.addEventListener("change", () => {
      if (input.files.length) open(input.files[0], side);
      input.value = "";
    });
  }
  $("cancel").addEventListener("click", () => {
    state.reading?.abort(new DOMException("cancelled", "AbortError"));
    $("reading").hidden = true;
  });
  $("runs").addEventListener("change", () => ((state.files[0].at = Number($("runs").value)), show(true)));
  $("theme").addEventListener("click", () => theme(dark() ? "light" : "dark"));
  $("lang").addEventListener("click", () => language(root.lang === "ko" ? "en" : "ko"));
  $("marks").addEventListener("click", () => marks(root.dataset.marks !== "on"));
  $("in").addEventListener("click", () => lane.zoom(0.5));
  $("out").addEventListener("click", () => lane.zoom(2));
  $("fit").addEventListener("click", () => lane.fit());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(null));
  addEventListener("keydown", keys);
  addEventListener("resize", () => {
    clearTimeout(state.resizing);
    state.resizing = setTimeout(() => state.files[0] && charts(), 150);
  });
  dropping();
}

/** Files dropped anywhere: one is shown, two are compared. */
function dropping() {
  const over = (on) => document.body.classList.toggle("over", on);
  addEventListener("dragover", (event) => {
    event.preventDefault();
    over(true);
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && over(false));
  addEventListener("drop", async (event) => {
    event.preventDefault();
    over(false);
    const files = [...event.dataTransfer.files].slice(0, 2);
    if (!files.length) notice(true, t("e_noFile"), t("e_noFileHelp"));
    for (const [side, file] of files.entries()) await open(file, side);
  });
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !state.files[0]) return;
  const busy = event.target.closest?.("input, select, button, summary, a");
  if (busy) return;
  const [side, token] = state.chosen;
  const run = runs()[side];
  const step = run.stepOf(token);
  const deeds = {
    " ": () => race.toggle(),
    ArrowLeft: () => choose(side, token - 1),
    ArrowRight: () => choose(side, token + 1),
    ArrowUp: () => choose(side, run.first[Math.max(0, step - 1)]),
    ArrowDown: () => choose(side, run.first[Math.min(run.steps - 1, step + 1)]),
    Home: () => choose(side, 0),
    End: () => choose(side, run.tokens - 1),
    "+": () => lane.zoom(0.5),
    "=": () => lane.zoom(0.5),
    "-": () => lane.zoom(2),
    0: () => lane.fit(),
  };
  const deed = deeds[event.key];
  if (!deed || (!run.steps && event.key !== " ")) return;
  event.preventDefault();
  deed();
  if (event.key.length > 1) $("said").textContent = sayToken(runs()[state.chosen[0]], state.chosen[1]);
}

function dark() {
  const chosen = root.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function theme(name) {
  if (name) root.dataset.theme = name;
  if (name) remember("theme", name);
  lane.paint();
  lane.draw();
}

function marks(on) {
  root.dataset.marks = on ? "on" : "off";
  $("marks").setAttribute("aria-pressed", String(on));
  remember("marks", on);
}

function language(code) {
  speak(code, root);
  remember("language", code);
  $("lang").textContent = t("lang");
  $("lang").lang = code === "ko" ? "en" : "ko";
  $("lang").title = t("langLabel");
  playing(race.playing);
  if (!state.files[0]) return;
  notices();
  describe();
  if (runs()[1]) compare();
  playback(false);
  choose(...state.chosen);
}
