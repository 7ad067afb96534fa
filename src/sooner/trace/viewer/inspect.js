// What is known about one token: where it came from, how likely it was, what else there was, what its step took.
// Knows a step's record; draws elements.

import { make, visible } from "./dom.js";
import { look, origin } from "./look.js";
import { number, percent, t } from "./strings.js";
import { TARGET, list } from "./trace.js";

/** Describe a token of a run in `place`. */
export function showToken(place, run, token) {
  const facts = about(run, token);
  const face = make("p", "face", make("span", `big ${look(facts.source)}`, facts.word), make("span", "outcome", outcome(facts)));
  place.replaceChildren(face, make("p", "where", where(run, facts)), odds(run, facts), make("p", "where", times(run, facts.step)));
}

/** The same in one sentence, for screen readers. */
export function sayToken(run, token) {
  const facts = about(run, token);
  const chance = Number.isFinite(facts.p) ? `p ${percent(facts.p)}` : "";
  return [facts.word, outcome(facts), chance, where(run, facts)].filter(Boolean).join(". ");
}

function about(run, token) {
  const step = run.stepOf(token);
  const record = run.record(step);
  const place = token - run.first[step];
  const node = place < list(record.path).length ? record.path[place] : null;
  const draft = record.draft ?? {};
  const text = visible(run.texts[token]);
  return {
    token,
    step,
    record,
    place,
    node,
    source: run.name(token),
    id: run.ids[token],
    word: (run.pieces.known ? run.pieces.shown(run.ids[token]) : text) || "∅",
    p: list(record.p)[place] ?? chanceOf(list(record.logprobs)[place]),
    q: node === null ? null : list(draft.q)[node],
    claim: node === null ? null : list(draft.confidence)[node],
    top: tops(record, place),
    lost: lost(record, place),
  };
}

const chanceOf = (entry) => (Number.isFinite(entry?.[1]) ? Math.exp(entry[1]) : null);

/** The likeliest tokens at a place, `[id, p]`. */
function tops(record, place) {
  const top = list(list(record.top)[place]);
  if (top.length) return top.filter((entry) => Number.isFinite(entry?.[1]));
  return list(list(record.logprobs)[place]?.[2]).filter((entry) => Number.isFinite(entry?.[1])).map(([id, value]) => [id, Math.exp(value)]);
}

/** The nodes beside the token that was emitted: guesses that were not kept there. */
function lost(record, place) {
  const path = list(record.path);
  const parent = place === 0 ? -1 : (path[place - 1] ?? null);
  const draft = record.draft ?? {};
  if (parent === null) return [];
  return list(draft.tokens)
    .map((token, i) => ({ token, i, parent: list(draft.parents)[i], source: String(list(draft.sources)[i] ?? ""), p: list(draft.p)[i] }))
    .filter((node) => node.parent === parent && node.i !== path[place] && node.token !== list(record.tokens)[place])
    .slice(0, 4);
}

function outcome({ source, node, record }) {
  if (source !== TARGET) return t("confirmed", { name: origin(source) });
  if (!list(record.draft?.tokens).length) return t("ownPlain");
  return node === null && list(record.path).length === 0 ? t("ownRejected") : t("ownAfter", { count: list(record.path).length });
}

function where(run, { token, step, id }) {
  return t("where", { token: number(token + 1), tokens: number(run.tokens), step: number(step + 1), id });
}

function odds(run, { p, q, claim, top, lost, id, source }) {
  const place = make("div", "odds");
  if (Number.isFinite(p)) line(place, t("p"), p, "p", t("pHelp"));
  if (Number.isFinite(q)) line(place, t("q"), q, "q", t("qHelp"));
  else if (Number.isFinite(claim)) line(place, t("claim"), claim, "q", t("claimHelp"));
  if (top.length) {
    place.append(make("h4", "", t("alternatives")));
    for (const [other, chance] of top) line(place, run.pieces.shown(other), chance, other === id ? "p" : "", "", other === id ? "word taken" : "word");
  }
  if (lost.length) {
    place.append(make("h4", "", t("lost")));
    for (const node of lost) {
      place.append(make("span", "what word", run.pieces.shown(node.token)), make("span", "what", origin(node.source)));
      place.append(make("span", "value", Number.isFinite(node.p) ? percent(node.p) : ""));
    }
  }
  return place;
}

function line(place, name, share, className, help, look = "") {
  const bar = make("i", className);
  bar.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  const what = make("span", `what ${look}`, name);
  if (help) what.title = help;
  place.append(what, make("span", "rule", bar), make("span", "value", percent(share)));
}

function times(run, step) {
  const [draft, score, verify, rest] = [run.draft, run.score, run.verify, run.overhead].map((list) => number(list[step], 1));
  return t("took", { all: number(run.took(step), 1), draft, score, verify, rest });
}
