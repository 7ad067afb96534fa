// The draft tree of one step: known token on top, guesses below, the model's own token where the kept path ends.
// Knows a step's record and pieces; draws an SVG.

import { draw, make } from "./dom.js";
import { shade } from "./look.js";
import { number, percent, t } from "./strings.js";
import { list } from "./trace.js";

const [WIDE, HIGH, GAP_X, GAP_Y] = [116, 24, 10, 12];
const MOST = 400;

/** Draw a step's tree into `place`; `current`: the emitted token to stress (its place in the step). */
export function showTree(place, run, step, current) {
  const record = run.record(step);
  const nodes = layout(record);
  const counts = { drafted: run.nodes[step], kept: run.kept[step] };
  const words = counts.drafted ? t("treeSaid", { step: step + 1, ...counts }) : t("treeNone", { step: step + 1 });
  place.setAttribute("aria-label", words);
  const title = make("p", "hint", words);
  if (!nodes.length) return place.replaceChildren(title);
  const before = run.first[step] - 1;
  const width = 1 + Math.max(...nodes.map((node) => node.x)) + WIDE;
  const height = 2 + Math.max(...nodes.map((node) => node.y)) + HIGH;
  const svg = draw("svg", { width, height, viewBox: `-1 -1 ${width} ${height}`, "aria-hidden": "true" });
  const root = { x: nodes[0].rootX, y: 0 };
  const parent = (node) => nodes[node.parent] ?? root;
  svg.append(...nodes.map((node) => edge(parent(node), node)));
  svg.append(box(root, "node root", before >= 0 ? run.pieces.shown(run.ids[before]) : t("promptEnd"), ""));
  svg.append(...nodes.map((node) => box(node, kind(node, current), run.pieces.shown(node.token), claim(node))));
  place.replaceChildren(title, svg);
  return place;
}

/** Nodes with places: a column for each leaf, a level for each depth. The last is the target's own token, if any. */
function layout(record) {
  const draft = record.draft ?? {};
  const tokens = list(draft.tokens).slice(0, MOST);
  const path = list(record.path);
  const emitted = list(record.tokens).length;
  const nodes = tokens.map((token, i) => {
    const parent = list(draft.parents)[i];
    return {
      token,
      parent: parent >= 0 && parent < i ? parent : -1,
      place: path.indexOf(i),
      kept: path.includes(i) && path.indexOf(i) < emitted,
      source: String(list(draft.sources)[i] ?? "draft"),
      p: list(draft.p)[i],
      claim: list(draft.q)[i] ?? list(draft.confidence)[i],
    };
  });
  if (emitted > path.length) {
    const last = path.filter((node) => node < tokens.length).at(-1) ?? -1;
    const own = { token: list(record.tokens)[path.length], parent: last, own: true, kept: true, place: path.length };
    nodes.push({ ...own, source: "target", p: list(record.p)[path.length] });
  }
  return placed(nodes);
}

function placed(nodes) {
  const below = new Map();
  nodes.forEach((node, i) => below.set(node.parent, [...(below.get(node.parent) ?? []), i]));
  for (const children of below.values()) children.sort((one, other) => nodes[other].kept - nodes[one].kept || one - other);
  let column = 0;
  // a chain of thousands would overflow a recursion: walk with a list of what is left to do
  const todo = (below.get(-1) ?? []).map((child) => [child, 1]).reverse();
  while (todo.length) {
    const [i, depth] = todo.pop();
    Object.assign(nodes[i], { x: column * (WIDE + GAP_X), y: depth * (HIGH + GAP_Y) });
    const children = below.get(i) ?? [];
    if (!children.length) column += 1;
    for (const child of [...children].reverse()) todo.push([child, depth + 1]);
  }
  if (nodes.length) nodes[0].rootX = nodes[(below.get(-1) ?? [0])[0]].x;
  return nodes;
}

function kind(node, current) {
  const here = node.place === current && node.kept ? " current" : "";
  if (node.own) return `node own${here}`;
  return `node d${shade(node.source)} ${node.kept ? "kept" : "lost"}${here}`;
}

function claim(node) {
  return Number.isFinite(node.p) ? percent(node.p) : Number.isFinite(node.claim) ? `~${percent(node.claim)}` : "";
}

function edge(from, to) {
  const [x1, y1, x2, y2] = [from.x + 16, from.y + HIGH, to.x + 16, to.y];
  const bend = to.x === from.x ? `M${x1} ${y1}V${y2}` : `M${x1} ${y1}V${y1 + GAP_Y / 2}H${x2}V${y2}`;
  return draw("path", { class: to.kept ? "edge kept" : "edge", d: bend });
}

function box(node, className, word, note) {
  const group = draw("g", { class: className, transform: `translate(${node.x} ${node.y})` });
  const rest = note ? 10 : 15;
  const short = [...word].length > rest ? `${[...word].slice(0, rest - 1).join("")}…` : word;
  const about = [word, node.source, node.kept === undefined ? "" : t(node.own ? "ownToken" : node.kept ? "kept" : "rejected")];
  if (Number.isFinite(node.p)) about.push(`p ${number(node.p, 3)}`);
  if (Number.isFinite(node.claim)) about.push(`${t("claim")} ${number(node.claim, 3)}`);
  const tip = draw("title", {}, about.filter(Boolean).join(" · "));
  group.append(tip, draw("rect", { width: WIDE, height: HIGH, rx: 6 }), draw("text", { x: 8, y: 16, class: "word" }, short));
  if (note) group.append(draw("text", { x: WIDE - 7, y: 16, "text-anchor": "end", class: "number" }, note));
  return group;
}
