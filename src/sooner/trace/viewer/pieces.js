// How tokens read: text, bytes of characters that several tokens share, or nothing but a name. Knows `tokens` records.

import { visible } from "./dom.js";

/** The pieces of one trace, by token id. `known`: whether it has any; traces without them show texts by step. */
export class Pieces {
  constructor() {
    this.map = new Map();
  }

  get known() {
    return this.map.size > 0;
  }

  add(pieces) {
    if (pieces === null || typeof pieces !== "object") return;
    for (const [id, piece] of Object.entries(pieces)) this.map.set(Number(id), piece);
  }

  /** A token by itself, with everything invisible made visible. */
  shown(id) {
    const piece = this.map.get(id);
    if (typeof piece === "string") return visible(piece) || `#${id}`;
    if (Array.isArray(piece)) return `⟨${piece.map((byte) => Number(byte).toString(16).padStart(2, "0")).join(" ")}⟩`;
    return piece?.name ? visible(String(piece.name)) : `#${id}`;
  }

  /** What a token would add to the text, on one line; empty where that is no text. */
  plain(id) {
    const piece = this.map.get(id);
    return typeof piece === "string" ? piece.replace(/\n/g, "↵") : "";
  }

  /** Turns ids into text, one after another: a character of several tokens belongs to the last of them. */
  decoder() {
    const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
    let pending = false;
    const flush = () => {
      const rest = pending ? utf8.decode() : "";
      pending = false;
      return rest;
    };
    const push = (id) => {
      const piece = this.map.get(id);
      if (Array.isArray(piece)) {
        pending = true;
        return utf8.decode(Uint8Array.from(piece), { stream: true });
      }
      return typeof piece === "string" ? flush() + piece : "";
    };
    return { push, flush };
  }
}
