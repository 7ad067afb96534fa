// Figures of a run: how much was kept, at which depth, what passes cost, and what plain decoding would have taken.
// Knows runs; draws nothing.

import { TARGET, list } from "./trace.js";

const ENOUGH = 8; // steps without a draft that make a median worth its name

/** The figures at the top. Passes after the first one count: the first reads the prompt. */
export function figures(run) {
  const drafted = run.nodes.reduce((sum, count) => sum + count, 0);
  let accepted = 0;
  for (const source of run.sources) if (run.names[source] !== TARGET) accepted += 1;
  const passes = run.steps - 1;
  const later = run.tokens - (run.first[1] ?? 0);
  const plain = plainMs(run);
  return {
    drafted,
    accepted,
    passes: run.steps,
    tokens: run.tokens,
    length: passes > 0 ? later / passes : null,
    rate: drafted ? accepted / drafted : null,
    speed: run.duration > 0 ? (1000 * later) / run.duration : null,
    plain,
    ratio: plain && run.duration > 0 ? (later * plain.ms) / run.duration : null,
  };
}

/** How many tokens each origin gave, most first; the drafter first named stands for those who agreed with it. */
export function origins(...runs) {
  const counts = new Map();
  for (const run of runs) {
    for (const source of run.sources) {
      const name = run.names[source].split("+")[0];
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
  }
  return [...counts].sort((one, other) => other[1] - one[1]);
}

/** What one token costs without a draft, in milliseconds, and where that is from; null if nothing tells. */
export function plainMs(run) {
  const { footer, header } = run;
  const said = footer?.plain_ms;
  if (Number.isFinite(said) && said > 0) return { ms: said, from: ["steps", "curve"].includes(footer.plain_from) ? footer.plain_from : "said" };
  if (said === null) return null; // the trace knows that it cannot be told
  const later = run.nodes.map((_, step) => step).slice(1);
  const bare = later.filter((step) => run.nodes[step] === 0);
  if (bare.length >= ENOUGH) return { ms: middle(bare.map((step) => run.took(step))), from: "steps" };
  const curve = list(header.cost?.ms)[0];
  if (Number.isFinite(curve) && curve > 0) return { ms: curve + mean(later.map((step) => run.verify[step] + run.overhead[step])), from: "curve" };
  const least = later.reduce((best, step) => Math.min(best, run.nodes[step]), Infinity);
  const short = later.filter((step) => run.nodes[step] === least).map((step) => run.took(step));
  const ms = short.length ? middle(short) : 0;
  return ms > 0 ? { ms, from: "short" } : null;
}

/** By depth from 1: how many drafts went so deep, and how many were kept so far. */
export function byDepth(run) {
  const rows = [];
  for (let step = 0; step < run.steps; step += 1) {
    for (let depth = 0; depth < run.depth[step]; depth += 1) {
      rows[depth] ??= { offered: 0, kept: 0 };
      rows[depth].offered += 1;
      if (depth < run.kept[step]) rows[depth].kept += 1;
    }
  }
  return rows;
}

/** By drafted tokens, ascending: passes, their median time and its middle 80 %, and the time per token written. */
export function byLength(run) {
  const groups = new Map();
  for (let step = 1; step < run.steps; step += 1) {
    const group = groups.get(run.nodes[step]) ?? { length: run.nodes[step], costs: [], spent: 0, tokens: 0 };
    groups.set(group.length, group);
    group.costs.push(run.score[step]);
    group.spent += run.took(step);
    group.tokens += run.first[step + 1] - run.first[step];
  }
  return [...groups.values()]
    .sort((one, other) => one.length - other.length)
    .map(({ length, costs, spent, tokens }) => {
      costs.sort((one, other) => one - other);
      const at = (share) => costs[Math.min(costs.length - 1, Math.floor(share * costs.length))];
      return { length, count: costs.length, low: at(0.1), middle: at(0.5), high: at(0.9), each: tokens ? spent / tokens : null };
    });
}

/** Where two runs' tokens part: the first position with different ids; null if one is the other's beginning. */
export function difference(one, other) {
  const most = Math.min(one.tokens, other.tokens);
  for (let i = 0; i < most; i += 1) if (one.ids[i] !== other.ids[i]) return i;
  return one.tokens === other.tokens ? null : most;
}

export function middle(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0);
