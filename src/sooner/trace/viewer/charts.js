// Two charts as SVG: how deep drafts went and were kept, and what passes of each draft length cost and earned.
// Knows rows of figures; does not know runs.

import { draw, make } from "./dom.js";
import { number, percent, t } from "./strings.js";

const HIGH = 240;
const [LEFT, RIGHT, TOP, BOTTOM] = [40, 12, 18, 52];

/** Offered and kept drafts by depth. */
export function showDepth(place, rows) {
  if (!rows.length) return place.replaceChildren(make("p", "hint", t("noDrafts")));
  const width = place.clientWidth || 560;
  const shown = rows.slice(0, 32);
  const most = shown[0].offered;
  const svg = frame(width, t("depthSaid", { rate: percent(shown[0].kept / most), depth: number(rows.length) }));
  scale(svg, width, most, t("drafts"));
  const slot = (width - LEFT - RIGHT) / shown.length;
  shown.forEach(({ offered, kept }, i) => {
    const x = LEFT + i * slot + slot * 0.15;
    const wide = slot * 0.7;
    const tip = draw("title", {}, t("depthTip", { depth: i + 1, offered: number(offered), kept: number(kept), rate: percent(kept / offered) }));
    svg.append(draw("g", {}, tip, bar("offered", x, wide, offered / most), bar("accepted", x, wide, kept / most)));
    if (slot > 30) svg.append(draw("text", { x: x + wide / 2, y: y(offered / most) - 4, "text-anchor": "middle", class: "strong" }, percent(kept / offered)));
    if (slot > 14 || i % 4 === 0) svg.append(draw("text", { x: x + wide / 2, y: HIGH - BOTTOM + 14, "text-anchor": "middle" }, String(i + 1)));
  });
  svg.append(draw("text", { x: width - RIGHT, y: HIGH - BOTTOM + 30, "text-anchor": "end" }, t("depthAxis")));
  return place.replaceChildren(svg);
}

/** Cost of a pass and of a token by the number of drafted tokens; the bars are how often it was chosen. */
export function showLength(place, rows) {
  if (!rows.length) return place.replaceChildren(make("p", "hint", t("noSteps")));
  const width = place.clientWidth || 560;
  const best = rows.filter((row) => row.each !== null && row.count >= 3).sort((one, other) => one.each - other.each)[0];
  const svg = frame(width, t("costSaid", { length: best?.length ?? rows[0].length, each: number(best?.each ?? rows[0].each ?? 0, 1) }));
  const longest = Math.max(1, rows.at(-1).length);
  const ceiling = 1.1 * Math.max(...rows.map((row) => Math.max(row.middle, Math.min(row.high, 2 * row.middle), row.count > 2 ? (row.each ?? 0) : 0)));
  const often = Math.max(...rows.map((row) => row.count));
  const x = (length) => LEFT + 14 + (length / longest) * (width - LEFT - RIGHT - 28);
  const wide = Math.max(1.5, Math.min(18, (0.7 * (width - LEFT - RIGHT)) / (longest + 1)));
  scale(svg, width, ceiling, "ms");
  for (const row of rows) svg.append(bar("count", x(row.length) - wide / 2, wide, (0.35 * row.count) / often));
  const each = rows.filter((row) => row.each !== null && row.count > 2 && row.each <= ceiling);
  svg.append(line("each", each.map((row) => [x(row.length), y(row.each / ceiling)])));
  svg.append(line("trend", rows.map((row) => [x(row.length), y(Math.min(1, row.middle / ceiling))])));
  for (const row of rows) {
    const values = { length: row.length, count: number(row.count), cost: number(row.middle, 1), each: row.each === null ? "–" : number(row.each, 1) };
    const group = draw("g", {}, draw("title", {}, t("costTip", values)));
    const [low, high] = [row.low, Math.min(row.high, ceiling)].map((value) => y(value / ceiling));
    group.append(draw("path", { class: "range", d: `M${x(row.length)} ${low}V${high}` }));
    group.append(draw("circle", { class: "median", cx: x(row.length), cy: y(Math.min(1, row.middle / ceiling)), r: 3.5 }));
    if (each.includes(row)) group.append(draw("rect", { class: "spot", x: x(row.length) - 3, y: y(row.each / ceiling) - 3, width: 6, height: 6 }));
    svg.append(group);
  }
  const every = Math.max(1, Math.ceil((longest * 22) / (width - LEFT - RIGHT)));
  for (let length = 0; length <= longest; length += every) svg.append(draw("text", { x: x(length), y: HIGH - BOTTOM + 14, "text-anchor": "middle" }, String(length)));
  svg.append(draw("text", { x: width - RIGHT, y: HIGH - BOTTOM + 30, "text-anchor": "end" }, t("costAxis")));
  key(svg);
  return place.replaceChildren(svg);
}

function key(svg) {
  const y = HIGH - 10;
  svg.append(draw("circle", { class: "median", cx: LEFT + 4, cy: y, r: 3.5 }), draw("text", { x: LEFT + 13, y: y + 4 }, t("perPass")));
  svg.append(draw("rect", { class: "spot", x: LEFT + 88, y: y - 3, width: 6, height: 6 }), draw("text", { x: LEFT + 101, y: y + 4 }, t("perToken")));
}

const frame = (width, label) => draw("svg", { viewBox: `0 0 ${width} ${HIGH}`, role: "img", "aria-label": label });
const y = (share) => TOP + (1 - share) * (HIGH - TOP - BOTTOM);
const bar = (name, x, width, share) => draw("rect", { class: name, x, width, y: y(share), height: Math.max(0, y(0) - y(share)), rx: 2 });
const line = (name, points) => draw("path", { class: name, d: points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") });

function scale(svg, width, most, unit) {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const tick = power * [1, 2, 5, 10].find((step) => step * power >= rough);
  for (let at = 0; at <= most; at += tick) {
    svg.append(draw("path", { class: "grid", d: `M${LEFT} ${y(at / most)}H${width - RIGHT}` }));
    svg.append(draw("text", { x: LEFT - 6, y: y(at / most) + 4, "text-anchor": "end" }, number(at)));
  }
  svg.append(draw("text", { x: 0, y: 10 }, unit));
}
