// The conversation: turns, sending, stopping, trying again, checking against plain decoding. Knows the order of things;
// how they look is the view's business, how they travel the API's.

import { Answer, difference } from "./answer.js";
import { Failure, chat, ready } from "./api.js";
import { recall, remember } from "./settings.js";
import { number, t } from "./strings.js";
import { Reply, failureCard, question } from "./view.js";

const KEPT = 4_000_000;

/** `page` offers `log`, `settings`, `model()`, `follow(answer)`, `state(busy)`, `say(text)` and `restore(text)`. */
export class Talk {
  constructor(page) {
    this.page = page;
    this.turns = [];
    this.abort = null;
    this.card = null;
  }

  get busy() {
    return this.abort !== null;
  }

  /** Ask something new. A question that never got an answer makes room for it. */
  send(text) {
    if (this.turns.at(-1)?.role === "user") this.turns.pop().node.remove();
    const node = question(text);
    this.page.log.append(node);
    this.turns.push({ role: "user", text, node });
    return this.ask();
  }

  /** Answer the last question, or answer it again. */
  async ask() {
    if (this.busy) return;
    this.card?.remove();
    if (this.turns.at(-1)?.role === "assistant") this.turns.pop().reply.node.remove();
    const request = this.request();
    const answer = new Answer(request, request.draft === "none");
    const reply = this.open(answer);
    this.page.say(t("started"));
    const failure = await this.stream(answer, () => this.page.follow(answer, reply));
    this.settle(answer, reply, failure);
  }

  /** The same request decoded plainly: is the text the same, and how long did it take? */
  async check(answer, reply) {
    if (this.busy) return;
    const plain = new Answer({ ...answer.request, draft: "none" }, true);
    const note = () => reply.summary(`${t("checking")} ${number(plain.tokens)} / ${number(answer.tokens)}`);
    note();
    const failure = await this.stream(plain, note);
    if (!failure && plain.finish !== "stopped") {
      const at = difference(plain.text, answer.text);
      answer.verdict = { same: at === null, at, plainMs: plain.decodingMs, ms: answer.decodingMs };
      this.save();
    }
    reply.summary();
    this.page.say(reply.foot.querySelector(".verdict")?.textContent ?? "");
    if (failure) this.fail(failure, () => this.check(answer, reply));
  }

  /** Stop what runs; what has arrived is kept. */
  stop() {
    this.abort?.abort();
  }

  /** Forget the conversation. */
  clear() {
    this.stop();
    this.turns = [];
    this.page.log.replaceChildren();
    this.save();
  }

  /** Bring back the conversation of this tab. */
  restore() {
    for (const turn of recall("sessionStorage", "talk", [])) {
      if (turn.role === "user") {
        const node = question(turn.text);
        this.page.log.append(node);
        this.turns.push({ ...turn, node });
      } else this.open(Answer.from(turn.answer)).close();
    }
    return this.turns.length > 0;
  }

  request() {
    const { settings } = this.page;
    const head = settings.system ? [{ role: "system", content: settings.system }] : [];
    const turns = this.turns.map((turn) => ({ role: turn.role, content: turn.text ?? turn.answer.text }));
    return { model: this.page.model(), messages: [...head, ...turns], ...settings.sampling() };
  }

  open(answer) {
    const reply = new Reply(answer, {
      copy: (button) => copy(answer.text, button),
      again: () => this.turns.at(-1)?.answer === answer && this.ask(),
      check: () => this.check(answer, reply),
    });
    this.page.log.append(reply.node);
    this.turns.push({ role: "assistant", answer, reply });
    return reply;
  }

  /** Feed a request's chunks to an answer; returns the failure, if there was one. */
  async stream(answer, onStep) {
    this.card?.remove();
    this.abort = new AbortController();
    this.page.state(true);
    try {
      for await (const chunk of chat(answer.request, this.page.settings.key, this.abort.signal)) {
        if (answer.take(chunk, performance.now())) onStep();
      }
      return null;
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else if (error instanceof Failure) return error;
      else throw error;
      return null;
    } finally {
      this.abort = null;
      this.page.state(false);
    }
  }

  settle(answer, reply, failure) {
    if (!this.turns.some((turn) => turn.answer === answer)) return;
    if (!answer.text && (failure || answer.finish === "stopped")) {
      this.turns.pop();
      reply.node.remove();
      if (!failure) this.takeBack();
    } else {
      reply.close();
      this.page.follow(answer, null);
      if (!failure) this.page.say(t("done", { text: answer.text }));
    }
    if (failure) this.fail(failure, () => this.ask());
    this.save();
  }

  takeBack() {
    const { text, node } = this.turns.pop();
    node.remove();
    this.page.restore(text);
  }

  fail(failure, again) {
    this.card = failureCard(failure, (key) => {
      if (key) this.page.settings.key = key;
      this.card.remove();
      this.page.unlocked();
      again();
    });
    this.page.log.append(this.card);
    this.card.querySelector("input")?.focus();
    this.page.reveal();
    if (failure.kind === "loading") this.wait(this.card, again);
  }

  async wait(card, again) {
    while (card.isConnected) {
      await new Promise((done) => setTimeout(done, 1000));
      if (card.isConnected && !this.busy && (await ready())) return again();
    }
  }

  save() {
    const turns = this.turns.map(({ role, text, answer }) => (role === "user" ? { role, text } : { role, answer }));
    const small = JSON.stringify(turns).length < KEPT;
    remember("sessionStorage", "talk", small && turns.length ? turns : null);
  }
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
    button.focus();
  }
  button.textContent = t("copied");
  setTimeout(() => (button.textContent = t("copy")), 1500);
}
