// The page: its controls wired to the conversation. Knows every element by id; decides nothing about answers.

import { models } from "./api.js";
import { Settings, recall, remember } from "./settings.js";
import { draw } from "./strip.js";
import { label, number, percent, preferred, speak, t } from "./strings.js";
import { Talk } from "./talk.js";
import { make, sample } from "./view.js";

const $ = (id) => document.getElementById(id);
const root = document.documentElement;
const IDEAS = ["idea1", "idea2", "idea3", "idea4"];

let frame = null;
let cost = 0;
let sticky = true;
let shown = null;

const settings = new Settings($("options"));
const talk = new Talk({ log: $("log"), settings, model, follow, state, say, restore, reveal, unlocked });

language(preferred(recall("localStorage", "language", null), navigator.language));
theme(recall("localStorage", "theme", null));
marks(recall("localStorage", "marks", true));
if (talk.restore()) begin(talk.turns.at(-1).answer);
unlocked();
if (matchMedia("(pointer: fine)").matches) $("prompt").focus();

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (talk.busy) talk.stop();
  else submit($("prompt").value);
});
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (event) => {
  const composing = event.isComposing || event.keyCode === 229; // an input method still builds a syllable
  if (event.key !== "Enter" || event.shiftKey || composing) return;
  event.preventDefault();
  if (!talk.busy) submit($("prompt").value);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (!$("settings").hidden) panel(false);
  else talk.stop();
});
$("new").addEventListener("click", () => {
  talk.clear();
  $("welcome").hidden = false;
  $("meter").hidden = $("new").hidden = true;
  shown = null;
  $("prompt").focus();
});
$("marks").addEventListener("click", () => marks(root.dataset.marks !== "on"));
$("open").addEventListener("click", () => panel($("settings").hidden));
$("close").addEventListener("click", () => panel(false));
$("reset").addEventListener("click", () => settings.reset());
$("theme").addEventListener("click", () => theme(dark() ? "light" : "dark"));
$("lang").addEventListener("click", () => language(root.lang === "ko" ? "en" : "ko"));
$("down").addEventListener("click", () => {
  reveal();
  $("prompt").focus();
});
$("scroll").addEventListener("scroll", () => {
  const { scrollTop, scrollHeight, clientHeight } = $("scroll");
  sticky = scrollHeight - scrollTop - clientHeight < 48;
  $("down").hidden = sticky;
});
addEventListener("resize", () => shown && draw($("strip"), shown.steps));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && draw($("strip"), shown.steps));

/** Send what was written, if the settings allow it. */
function submit(text) {
  if (!text.trim() || talk.busy) return;
  if (!settings.form.checkValidity()) {
    panel(true);
    settings.form.querySelector("details").open = true;
    settings.form.reportValidity();
    return;
  }
  $("prompt").value = "";
  grow();
  begin(null);
  sticky = true;
  talk.send(text.trim());
  reveal();
}

function begin(answer) {
  $("welcome").hidden = true;
  $("new").hidden = false;
  if (answer) meter(answer);
  if (answer) reveal();
}

/** An answer has grown (`reply`) or is complete (null): draw it at the next frame, more seldom while drawing is slow. */
function follow(answer, reply) {
  if (reply === null) {
    clearTimeout(frame);
    frame = null;
    meter(answer);
    if (sticky) reveal();
  } else {
    frame ??= setTimeout(() => requestAnimationFrame(() => paint(answer, reply)), 2 * cost);
  }
}

function paint(answer, reply) {
  if (frame === null) return;
  frame = null;
  const begun = performance.now();
  reply.grow();
  meter(answer);
  if (sticky) reveal();
  cost = performance.now() - begun;
}

function meter(answer) {
  shown = answer;
  $("meter").hidden = answer.perPass === null;
  if (answer.perPass === null) return;
  $("m-pass").textContent = number(answer.perPass, 2);
  $("m-speed").textContent = answer.speed ? number(answer.speed, answer.speed < 10 ? 1 : 0) : "–";
  $("m-saved").textContent = percent(Math.max(0, answer.saved));
  draw($("strip"), answer.steps);
}

function state(busy) {
  root.classList.toggle("busy", busy);
  label($("send"), busy ? "stop" : "send");
}

function say(text) {
  $("said").textContent = text;
}

function restore(text) {
  if (!$("prompt").value) $("prompt").value = text;
  if (!talk.turns.length) $("new").click();
  grow();
}

function reveal() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function grow() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
}

function model() {
  return $("models").value;
}

/** Ask for the models' names again, now that there is a key or that the server is up. */
async function unlocked() {
  $("key-field").hidden = !settings.key;
  try {
    const names = await models(settings.key);
    $("models").replaceChildren(...names.map((name) => new Option(name.split("/").at(-1), name)));
    $("models").hidden = names.length < 2;
    $("model").hidden = names.length > 1;
    $("model").textContent = names[0]?.split("/").at(-1) ?? "";
    $("model").title = names[0] ?? "";
  } catch (failure) {
    // the first question will say in words what else is wrong
    const loading = failure.kind === "loading";
    $("model").textContent = loading ? t("e_loading") : "";
    if (loading) setTimeout(unlocked, 1500);
  }
}

function panel(open) {
  $("settings").hidden = !open;
  $("open").setAttribute("aria-expanded", String(open));
  (open ? $("settings").querySelector("input") : $("open")).focus();
}

function dark() {
  const chosen = root.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function theme(name) {
  if (name) root.dataset.theme = name;
  if (name) remember("localStorage", "theme", name);
  if (shown) draw($("strip"), shown.steps);
}

function marks(on) {
  root.dataset.marks = on ? "on" : "off";
  $("marks").setAttribute("aria-pressed", String(on));
  remember("localStorage", "marks", on);
}

function language(code) {
  speak(code, root);
  remember("localStorage", "language", code);
  $("lang").textContent = t("lang");
  $("lang").lang = code === "ko" ? "en" : "ko";
  $("lang").title = t("langLabel");
  label($("send"), talk.busy ? "stop" : "send");
  sample(document.querySelector("[data-marked]"), t("sample"));
  $("ideas").replaceChildren(...IDEAS.map(idea));
  for (const turn of talk.turns) turn.reply?.summary();
  if (shown) meter(shown);
}

function idea(key) {
  const button = make("button", "idea", t(key));
  button.type = "button";
  button.addEventListener("click", () => submit(t(key)));
  return make("li", "", button);
}
