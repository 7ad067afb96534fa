// The head of a run: model, settings, figures, and what its text depends on; and the line that compares two.
// Knows runs and their headers; draws elements.

import { make } from "./dom.js";
import { origin } from "./look.js";
import { difference, figures } from "./stats.js";
import { number, percent, t } from "./strings.js";

/** Model, settings and facts into the places `{model, settings, facts, figures}`. */
export function showRun(places, run) {
  const { header, footer } = run;
  places.model.textContent = text(header.model) || t("unknownModel");
  places.settings.replaceChildren(...chips(run).map(chip));
  places.facts.replaceChildren(...facts(header, footer).flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
  places.figures.replaceChildren(...tiles(run));
}

function chips(run) {
  const { header } = run;
  const sampling = header.sampling ?? {};
  const found = [
    [t("drafter"), origin(text(header.drafter) || "?")],
    [t("temperature"), text(sampling.temperature ?? 0)],
    [t("seed"), text(header.seed ?? sampling.seed)],
    [t("rule"), text(sampling.verify)],
    [t("budget"), header.budget === null || header.budget === undefined ? t("automatic") : text(header.budget)],
    [t("precision"), text(header.fingerprint?.precision)],
    [t("constraint"), text(header.constraint?.kind)],
  ].filter(([, value]) => value);
  for (const name of ["top_p", "top_k", "min_p", "repetition_penalty"]) {
    const neutral = name.startsWith("top_k") || name === "min_p" ? 0 : 1;
    if (Number.isFinite(sampling[name]) && sampling[name] !== neutral) found.push([name.replaceAll("_", "-"), text(sampling[name])]);
  }
  if (header.lossless === false) found.push(["", t("lossy")]);
  return found;
}

function chip([name, value]) {
  const node = make("span", name ? "chip" : "chip bad", name ? `${name} ` : "", make("b", "", value));
  node.title = value;
  return node;
}

function facts(header, footer) {
  const rows = Object.entries(header.fingerprint ?? {}).map(([name, value]) => [name.replaceAll("_", " "), text(value)]);
  rows.push([t("written"), [text(header.time), text(header.sooner) && `sooner ${text(header.sooner)}`].filter(Boolean).join(" · ")]);
  rows.push([t("promptTokens"), text(header.prompt_tokens ?? header.prompt?.length)], [t("context"), text(header.context)]);
  rows.push([t("invariant"), header.row_invariant === undefined ? "" : t(header.row_invariant ? "yes" : "no")]);
  rows.push([t("warning"), text(footer?.choices?.[0]?.speculation?.warning)], [t("failed"), text(footer?.error)]);
  return rows.filter(([, value]) => value);
}

function tiles(run) {
  const facts = figures(run);
  const { length, ratio, rate, plain } = facts;
  const tiles = [[t("acceptanceLength"), length === null ? "–" : number(length, 2), ""]];
  if (facts.drafted && ratio) tiles.push([t("ratio"), `${number(ratio, 2)}×`, t(`from_${plain.from}`), "lead-figure"]);
  if (facts.speed) tiles.push([t("speed"), number(facts.speed, facts.speed < 10 ? 1 : 0), ""]);
  if (rate !== null) tiles.push([t("rate"), percent(rate), t("rateHelp", { accepted: number(facts.accepted), drafted: number(facts.drafted) })]);
  tiles.push([t("passes"), number(facts.passes), t("passesHelp", { tokens: number(facts.tokens), passes: number(facts.passes) })]);
  return tiles.map(([name, value, help, className]) => {
    const tile = make("div", "", make("dt", "", name), make("dd", className, value));
    tile.title = help;
    return tile;
  });
}

/** Two runs in words: whether they are the same text, and the first place where they are not. */
export function showComparison(place, sides) {
  const [one, other] = sides.map((side) => side.run);
  const at = difference(one, other);
  const verdict = make("p", `compared ${at === null ? "good" : "bad"}`, sentence(one, other, at));
  const heads = sides.map(({ name, run }, i) => {
    const { length, speed, passes } = figures(run);
    const seconds = number(run.duration / 1000, 2);
    const parts = [origin(text(run.header.drafter) || "?"), t("seconds", { seconds }), t("passCount", { passes: number(passes) })];
    if (length) parts.push(t("each", { length: number(length, 2) }));
    if (speed) parts.push(t("perSecond", { speed: number(speed, speed < 10 ? 1 : 0) }));
    return make("div", "", make("h3", "", `${"AB"[i]} · ${name}`), make("p", "", parts.join(" · ")));
  });
  place.replaceChildren(...heads);
  place.parentNode.querySelector(".compared")?.remove();
  place.before(verdict);
  return at;
}

function sentence(one, other, at) {
  if (!one.tokens && !other.tokens) return t("bothEmpty");
  if (at === null) return t("identical", { tokens: number(one.tokens) });
  const word = (run) => (at < run.tokens ? `“${run.pieces.known ? run.pieces.shown(run.ids[at]) : run.ids[at]}”` : t("theEnd"));
  return t("parted", { token: number(at + 1), one: word(one), other: word(other), first: number(one.stepOf(at) + 1), second: number(other.stepOf(at) + 1) });
}

/** Whatever a header holds as text: strangers' traces may hold anything. */
export function text(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
