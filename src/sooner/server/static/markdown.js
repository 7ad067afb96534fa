// A small, safe Markdown: offsets in, elements out. It never writes text itself: `emit(parent, start, end)` does, so that
// whoever knows where each character came from can mark it; and nothing of the text is ever read as HTML.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`\n]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])([ \t]+)(?=\S)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const BLANK = /^[ \t]*$/;

/** The blocks of `text` from offset `from` on: `{kind, start, end, lines, ...}`, offsets into `text`. */
export function blocks(text, from = 0) {
  const lines = split(text, from);
  const found = [];
  for (let i = 0; i < lines.length; ) {
    if (BLANK.test(lines[i].text)) {
      i += 1;
      continue;
    }
    const block = readBlock(lines, i);
    found.push(block);
    i += block.lines.length + (block.kind === "code" && block.closed ? 2 : block.kind === "code" ? 1 : 0);
  }
  return found;
}

function split(text, from) {
  const lines = [];
  for (let start = from; start < text.length; ) {
    const next = text.indexOf("\n", start);
    const end = next < 0 ? text.length : next;
    lines.push({ start, end, text: text.slice(start, end) });
    start = end + 1;
  }
  return lines;
}

function readBlock(lines, i) {
  const line = lines[i].text;
  const fence = FENCE.exec(line);
  if (fence) return readCode(lines, i, fence);
  if (HEADING.test(line)) return { kind: "heading", level: HEADING.exec(line)[1].length, ...span(lines, i, i + 1) };
  if (RULE.test(line)) return { kind: "rule", ...span(lines, i, i + 1) };
  if (QUOTE.test(line)) return { kind: "quote", ...span(lines, i, until(lines, i, (text) => !QUOTE.test(text))) };
  if (ITEM.test(line)) return { kind: "list", ...span(lines, i, endOfList(lines, i)) };
  if (tableAt(lines, i)) return { kind: "table", ...span(lines, i, until(lines, i, (text) => !text.includes("|"))) };
  return { kind: "paragraph", ...span(lines, i, endOfParagraph(lines, i)) };
}

function span(lines, i, j) {
  return { start: lines[i].start, end: lines[j - 1].end, lines: lines.slice(i, j) };
}

function until(lines, i, stop) {
  let j = i + 1;
  while (j < lines.length && !stop(lines[j].text)) j += 1;
  return j;
}

function readCode(lines, i, fence) {
  const closing = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}[ \\t]*$`);
  const j = until(lines, i, (text) => closing.test(text));
  const inside = lines.slice(i + 1, j);
  const start = lines[i].start;
  return { kind: "code", start, end: lines[j - 1].end, lines: inside, name: fence[2], closed: j < lines.length };
}

function tableAt(lines, i) {
  return lines[i].text.includes("|") && lines[i + 1]?.text.includes("-") && DELIMITERS.test(lines[i + 1].text);
}

function endOfParagraph(lines, i) {
  const begins = (text) => BLANK.test(text) || FENCE.test(text) || HEADING.test(text) || RULE.test(text) || QUOTE.test(text);
  let j = i + 1;
  while (j < lines.length && !begins(lines[j].text) && !ITEM.test(lines[j].text) && !tableAt(lines, j)) j += 1;
  return j;
}

function endOfList(lines, i) {
  let j = i + 1;
  for (let k = j; k < lines.length; k += 1) {
    const text = lines[k].text;
    const blankBefore = k > j;
    if (BLANK.test(text)) continue;
    if (RULE.test(text)) break;
    if (!ITEM.test(text) && (blankBefore ? !/^\s{2,}/.test(text) : FENCE.test(text) || HEADING.test(text))) break;
    j = k + 1;
  }
  return j;
}

/** A block as an element. `open`: more text may follow its end, so an unclosed `**` or backtick counts as closed there. */
export function render(block, text, emit, open = false) {
  const inline = (parent, start, end) => renderInline(parent, text, start, end, emit, open && end === text.length);
  return RENDER[block.kind](block, inline, emit);
}

const RENDER = {
  rule: () => document.createElement("hr"),
  heading(block, inline) {
    const node = document.createElement(`h${Math.min(block.level + 2, 6)}`);
    inline(node, block.start + HEADING.exec(block.lines[0].text)[0].length, block.end);
    return node;
  },
  paragraph(block, inline) {
    const node = document.createElement("p");
    inline(node, block.start, block.end);
    return node;
  },
  quote(block, inline) {
    const node = document.createElement("blockquote");
    block.lines.forEach((line, i) => {
      if (i) node.append(document.createElement("br"));
      inline(node, line.start + QUOTE.exec(line.text)[0].length, line.end);
    });
    return node;
  },
  code(block, inline, emit) {
    const node = document.createElement("pre");
    const code = document.createElement("code");
    if (block.name) node.dataset.name = block.name;
    node.tabIndex = 0;
    if (block.lines.length) emit(code, block.lines[0].start, block.lines.at(-1).end);
    node.append(code);
    return node;
  },
  table(block, inline) {
    const node = document.createElement("table");
    block.lines.forEach((line, i) => {
      if (i === 1) return;
      const row = node.insertRow();
      for (const [start, end] of cells(line)) {
        const cell = document.createElement(i ? "td" : "th");
        inline(cell, start, end);
        row.append(cell);
      }
    });
    const frame = document.createElement("div");
    frame.className = "table";
    frame.append(node);
    return frame;
  },
  list(block, inline) {
    const root = document.createElement("div");
    const stack = [];
    let item = null;
    for (const line of block.lines) {
      const match = ITEM.exec(line.text);
      if (match) item = openItem(root, stack, match);
      else if (BLANK.test(line.text)) continue;
      else item.append(document.createElement("br"));
      const indent = match ? match[0].length : line.text.length - line.text.trimStart().length;
      inline(item, line.start + indent, line.end);
    }
    return root.childNodes.length === 1 ? root.firstChild : root;
  },
};

function openItem(root, stack, match) {
  const depth = match[1].replace(/\t/g, "    ").length;
  while (stack.length && depth < stack.at(-1).depth) stack.pop();
  const kind = /\d/.test(match[2]) ? "OL" : "UL";
  if (!stack.length || depth >= stack.at(-1).depth + 2) {
    const list = document.createElement(kind);
    (stack.length ? stack.at(-1).list.lastChild : root).append(list);
    stack.push({ depth, list });
  } else if (stack.at(-1).list.tagName !== kind) {
    const list = document.createElement(kind);
    stack.at(-1).list.parentNode.append(list);
    stack[stack.length - 1] = { depth, list };
  }
  const { list } = stack.at(-1);
  if (kind === "OL" && !list.childNodes.length) list.start = parseInt(match[2], 10);
  return list.appendChild(document.createElement("li"));
}

function cells(line) {
  const found = [];
  let start = line.start + (line.text.length - line.text.trimStart().length);
  const end = line.start + line.text.trimEnd().length;
  if (line.text.trimStart().startsWith("|")) start += 1;
  for (let i = start; i <= end; i += 1) {
    const here = line.text[i - line.start];
    if (i < end && (here !== "|" || line.text[i - line.start - 1] === "\\")) continue;
    if (i < end || i > start) found.push(trimmed(line, start, i));
    start = i + 1;
  }
  return found;
}

function trimmed(line, start, end) {
  while (start < end && line.text[start - line.start] === " ") start += 1;
  while (end > start && line.text[end - 1 - line.start] === " ") end -= 1;
  return [start, end];
}

const SPECIAL = /[\\`*_~[\n]|https?:\/\//g;
const LINK = /\[([^[\]\n]{1,300})\]\((https?:\/\/[^\s()<>]{1,2000})\)/y;
const BARE = /https?:\/\/[^\s<>()"'`*]{1,2000}/y;
const FAR = 1000;
const DEEP = 8;

function renderInline(parent, text, start, end, emit, open, depth = 0) {
  let plain = start;
  const flush = (to) => to > plain && emit(parent, plain, to);
  SPECIAL.lastIndex = start;
  for (let match; (match = SPECIAL.exec(text)) && match.index < end; ) {
    const at = match.index;
    const found = depth < DEEP && special(text, at, end, open);
    if (!found) {
      SPECIAL.lastIndex = at + (match[0] === "*" || match[0] === "_" ? runLength(text, at) : match[0].length);
      continue;
    }
    flush(at);
    if (found.node) {
      const node = parent.appendChild(found.node);
      if (found.raw) emit(node, found.start, found.end);
      else if (found.end > found.start) {
        renderInline(node, text, found.start, found.end, emit, open && found.end === text.length, depth + 1);
      }
    } else if (found.end > found.start) emit(parent, found.start, found.end);
    plain = Math.min(found.next, end);
    SPECIAL.lastIndex = plain;
  }
  flush(end);
}

function special(text, at, end, open) {
  const here = text[at];
  if (here === "\n") return { node: document.createElement("br"), start: at, end: at, next: at + 1 };
  if (here === "\\") {
    if (at + 1 >= end || !/[!-/:-@[-`{-~]/.test(text[at + 1])) return null;
    return { start: at + 1, end: at + 2, next: at + 2 };
  }
  if (here === "`") return codeAt(text, at, end, open);
  if (here === "[") return linkAt(text, at, end, LINK);
  if (here === "h") return linkAt(text, at, end, BARE);
  return emphasisAt(text, at, end, open);
}

function runLength(text, at) {
  let to = at + 1;
  while (text[to] === text[at]) to += 1;
  return to - at;
}

function codeAt(text, at, end, open) {
  const ticks = text.slice(at, at + runLength(text, at));
  let close = text.indexOf(ticks, at + ticks.length);
  while (close >= 0 && runLength(text, close) !== ticks.length) close = text.indexOf(ticks, close + runLength(text, close));
  if (close < 0 || close >= end) close = open && ticks.length === 1 ? end : -1;
  if (close < 0) return null;
  const node = document.createElement("code");
  return { node, raw: true, start: at + ticks.length, end: close, next: close + ticks.length };
}

function linkAt(text, at, end, pattern) {
  pattern.lastIndex = at;
  const match = pattern.exec(text);
  if (!match || at + match[0].length > end) return null;
  const node = document.createElement("a");
  const bare = pattern === BARE;
  const length = bare ? match[0].replace(/[.,;:!?\]]+$/, "").length : match[0].length;
  node.href = bare ? match[0].slice(0, length) : match[2];
  node.rel = "noopener noreferrer";
  node.target = "_blank";
  const from = bare ? at : at + 1;
  return { node, raw: bare, start: from, end: from + (bare ? length : match[1].length), next: at + length };
}

const EMPHASIS = { "**": "strong", __: "strong", "~~": "del", "*": "em", _: "em" };

function emphasisAt(text, at, end, open) {
  const two = text.slice(at, at + 2);
  const mark = two in EMPHASIS ? two : text[at];
  const inside = at + mark.length;
  if (!(mark in EMPHASIS) || inside >= end || /\s/.test(text[inside])) return null;
  const words = mark.includes("_");
  if (words && at > 0 && /\w/.test(text[at - 1])) return null;
  for (let close = text.indexOf(mark, inside + 1); close >= 0 && close < Math.min(end, at + FAR); ) {
    const after = close + mark.length;
    const single = mark.length === 2 || (text[close - 1] !== mark && text[after] !== mark);
    if (single && !/\s/.test(text[close - 1]) && !(words && /\w/.test(text[after] ?? " "))) {
      return { node: document.createElement(EMPHASIS[mark]), start: inside, end: close, next: after };
    }
    close = text.indexOf(mark, close + 1);
  }
  if (!open || mark !== "**" || end - at > FAR) return null;
  return { node: document.createElement("strong"), start: inside, end, next: end };
}
