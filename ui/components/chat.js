// Chat over the WebSocket /v1/responses. The conversation lives in the browser's memory, apart from
// the view, so that an answer goes on while another page of the console is open. Model output only
// ever becomes text nodes.

const RETRY_MS = [500, 1000, 2000, 4000, 8000];
const SUGGESTIONS = [
  ["Text that repeats itself", "Write a Python class with getters and setters for name, age, city, email and phone."],
  ["A list to continue", "List the numbers from one to thirty as words, one per line, each as 'Number: word'."],
  ["A short story", "Tell a short story about a lighthouse keeper who finds a message in a bottle."],
  ["A summary", "Explain in simple words how a bicycle group saves energy when riding in a line."],
];
const KIND_WORDS = { accepted: "accepted draft", correction: "correction by the target",
  bonus: "bonus token of the target", plain: "plain token of the target" };

class Conversation {
  constructor(session) {
    this.session = session;
    this.messages = [];
    this.socket = null;
    this.state = "closed"; // closed, asking (for a ticket), opening, open, refused
    this.trouble = "";
    this.failures = 0;
    this.serial = 0;
    this.view = null;
    this.options = {};
    this.last = null; // id of the last answer the server keeps
    this.current = null;
    this.timer = null;
  }

  connect() {
    if (["asking", "opening", "open", "refused"].includes(this.state) || !this.view) return;
    clearTimeout(this.timer);
    this.state = "asking";
    this.serial += 1;
    this.view.ask(this.serial);
    // A lost trigger must not leave the chat waiting for ever.
    this.timer = setTimeout(() => this.dropped("No ticket came from the console."), 15000);
    this.view.connection();
  }

  answered(ticket) { // {serial, value} or {serial, error, refused}
    if (this.state !== "asking" || !ticket || ticket.serial !== this.serial) return;
    clearTimeout(this.timer);
    if (ticket.error) {
      if (ticket.refused) { this.state = "refused"; this.trouble = ticket.error; this.show(); }
      else this.dropped(ticket.error);
      return;
    }
    this.state = "opening";
    let socket;
    try {
      socket = new WebSocket(this.options.url, ["realtime", `openai-insecure-api-key.${ticket.value}`]);
    } catch (error) {
      this.state = "refused"; this.trouble = String(error.message || error); this.show();
      return;
    }
    this.socket = socket;
    socket.onopen = () => {
      this.state = "open"; this.failures = 0; this.trouble = ""; this.show();
      if (this.current && !this.current.sent) this.transmit();
    };
    socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    socket.onclose = (event) => {
      if (this.socket !== socket) return;
      this.socket = null;
      if (event.code === 4403) {
        this.state = "refused"; this.trouble = "This key may not send requests (scope inference)."; this.show();
        return;
      }
      this.dropped(event.reason || (this.state === "opening"
        ? `The browser cannot reach ${this.options.url}.` : "The connection was lost."));
    };
    this.show();
  }

  dropped(why) {
    clearTimeout(this.timer);
    const asked = this.state === "asking";
    this.state = "closed";
    this.trouble = why;
    if (this.current && this.current.sent) this.finish({ fault: why });
    const wait = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
    this.failures += 1;
    if (this.current && this.failures > (asked ? 3 : 2)) this.finish({ fault: why });
    this.timer = setTimeout(() => this.connect(), wait);
    this.show();
  }

  send(text) {
    if (this.current || !text.trim()) return;
    this.messages.push({ role: "user", text });
    this.begin();
  }

  retry() {
    if (this.current || this.messages.at(-1)?.role !== "assistant") return;
    this.messages.pop();
    this.begin();
  }

  begin() {
    this.current = { role: "assistant", pieces: [], text: "", counts: {}, done: false, sent: false,
      id: null, begun: performance.now(), first: null };
    this.messages.push(this.current);
    if (this.view) this.view.redraw();
    if (this.state === "refused") { this.state = "closed"; this.failures = 0; }
    if (this.state === "open") this.transmit();
    else this.connect();
  }

  transmit(whole = false) {
    const { options } = this;
    const before = this.messages.slice(0, -1);
    const body = { type: "response.create", model: options.model, x_spec: true,
      temperature: options.temperature, max_output_tokens: options.max_tokens,
      speculation: options.speculation };
    if (options.system) body.instructions = options.system;
    if (this.last && !whole) {
      body.previous_response_id = this.last;
      body.input = before.at(-1).text;
    } else {
      // A question that was refused stays out, or it would spoil every later turn.
      const refused = (index) => index + 1 < before.length && !before[index + 1].text;
      body.input = before.filter((m, index) => m.text && !(m.role === "user" && refused(index)))
        .map((m) => ({ role: m.role, content: m.text }));
    }
    this.current.sent = true;
    this.current.whole = whole || !this.last;
    this.socket.send(JSON.stringify(body));
  }

  stop() {
    const { current } = this;
    if (!current) return;
    if (!current.sent || !current.id) { this.hangUp(); this.finish({ status: "stopped" }); return; }
    current.stopping = true;
    this.socket.send(JSON.stringify({ type: "response.cancel", response_id: current.id }));
  }

  hangUp() { // leaving the socket cancels whatever runs on it
    const { socket } = this;
    clearTimeout(this.timer);
    this.socket = null;
    this.state = "closed";
    if (socket) { socket.onclose = null; socket.close(1000); }
  }

  clear() {
    if (this.current) { this.current = null; this.hangUp(); this.failures = 0; }
    this.messages = [];
    this.last = null;
    this.connect();
    if (this.view) { this.view.redraw(); this.view.connection(); }
  }

  receive(event) {
    const { current } = this;
    if (!current) return;
    switch (event.type) {
      case "response.created":
        current.id = event.response.id;
        break;
      case "response.output_text.delta": {
        if (current.first === null) current.first = performance.now();
        const spec = event.x_spec || { drafter: "none", pieces: [{ text: event.delta, kind: "plain" }] };
        for (const piece of spec.pieces) {
          const made = { text: piece.text, kind: piece.kind, drafter: spec.drafter, step: spec.step,
            drafted: spec.drafted, accepted: spec.accepted };
          current.pieces.push(made);
          const key = piece.kind === "accepted" ? `accepted:${spec.drafter}` : piece.kind;
          current.counts[key] = (current.counts[key] || 0) + 1;
          if (this.view) this.view.piece(made);
        }
        current.text += event.delta;
        if (this.view) this.view.progress();
        break;
      }
      case "response.completed": case "response.incomplete": {
        const { response } = event;
        const why = response.incomplete_details?.reason;
        this.last = response.id;
        this.finish({ response, status: current.stopping || why === "cancelled" ? "stopped"
          : why === "max_output_tokens" ? "length" : "" });
        break;
      }
      case "response.failed": case "response.cancelled":
        if (event.type === "response.cancelled" || event.response?.status === "cancelled") {
          this.last = event.response?.id || this.last;
          this.finish({ response: event.response, status: "stopped" });
        } else this.finish({ fault: event.response?.error?.message || "The answer failed." });
        break;
      case "error": {
        const error = event.error || event;
        // The server keeps answers for a limited time only; the browser still has the text.
        if (!current.whole && (error.param === "previous_response_id"
          || error.code === "previous_response_not_found")) { this.last = null; this.transmit(true); }
        else this.finish({ fault: error.message || "The request was refused." });
        break;
      }
    }
  }

  finish({ response = null, status = "", fault = "" }) {
    const { current } = this;
    this.current = null;
    Object.assign(current, { done: true, status, fault, response, ended: performance.now() });
    // A failed answer is not part of what the server remembers: the next turn sends the whole text.
    if (fault || (status === "stopped" && !response)) this.last = null;
    if (this.view) this.view.finished();
  }

  show() { if (this.view) this.view.connection(); }
}

class View {
  constructor(root, talk) {
    this.root = root;
    this.talk = talk;
    this.find = (name) => root.querySelector(`.${name}`);
    this.log = this.find("log");
    this.input = this.find("input");
    this.find("composer").onsubmit = (event) => { event.preventDefault(); this.submit(); };
    this.find("stop").onclick = () => { talk.stop(); this.input.focus(); };
    this.find("clear").onclick = () => { talk.clear(); this.input.focus(); };
    this.find("colours").onchange = (event) =>
      this.find("chat").classList.toggle("coloured", event.target.checked);
    this.find("chat").classList.add("coloured");
    this.input.oninput = () => this.grow();
    this.input.onkeydown = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault(); this.submit();
      }
    };
    this.find("chat").onkeydown = (event) => { if (event.key === "Escape") talk.stop(); };
  }

  update(data, ask) {
    this.ask = ask;
    this.data = data;
    const style = this.find("chat").style;
    for (const [name, colour] of Object.entries(data.theme)) style.setProperty(`--${name}`, colour);
    const legend = this.find("legend");
    const entries = data.legend.map((entry) => {
      const item = make("span", "", entry.label);
      const mark = make("i");
      if (entry.colour) mark.style.setProperty("--c", entry.colour);
      else mark.className = "plain";
      item.prepend(mark);
      return item;
    });
    legend.replaceChildren(...entries);
    this.find("next").textContent = `Next: ${chosen(data.options.speculation)}.`;
  }

  colour(kind, drafter) {
    const { colours } = this.data;
    return kind === "accepted" ? colours.drafters[drafter] || colours.drafters.none : colours[kind];
  }

  submit() {
    const text = this.input.value;
    if (this.talk.current || !text.trim()) return;
    this.input.value = "";
    this.grow();
    this.talk.send(text);
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight + 2}px`;
  }

  connection() {
    const { state, trouble, current } = this.talk;
    const badge = this.find("connection");
    badge.dataset.state = state;
    this.find("word").textContent = state === "open" ? "Connected"
      : state === "refused" ? "Not connected" : this.talk.failures ? "Reconnecting" : "Connecting";
    badge.title = trouble;
    if (state === "refused" && current) this.talk.finish({ fault: trouble });
    this.find("send").hidden = Boolean(current);
    this.find("stop").hidden = !current;
  }

  redraw() {
    this.log.replaceChildren();
    if (!this.talk.messages.length) this.log.append(this.welcome());
    for (const message of this.talk.messages) this.log.append(this.message(message));
    this.connection();
    this.log.scrollTop = this.log.scrollHeight;
  }

  welcome() {
    const box = make("div", "empty");
    box.append(make("h2", "", "Ask the model"),
      make("div", "", "Each token shows where it came from: drafted and accepted, or from the target."));
    const tries = make("div", "try");
    for (const [name, text] of SUGGESTIONS) {
      const button = make("button", "", text);
      button.type = "button";
      button.prepend(make("b", "", name));
      button.onclick = () => this.talk.send(text);
      tries.append(button);
    }
    box.append(tries);
    return box;
  }

  message(message) {
    if (message.role === "user") {
      const row = make("div", "user");
      row.append(make("div", "", message.text));
      return row;
    }
    const box = make("div", "answer");
    const text = make("div", "text");
    for (const piece of message.pieces) text.append(this.token(piece));
    if (!message.done) text.classList.add("waiting");
    text.hidden = message.done && !message.text;
    const foot = make("div", "foot");
    box.append(text, foot);
    if (message === this.talk.current) { this.text = text; this.foot = foot; }
    this.numbers(message, foot);
    if (message.fault) box.append(this.fault(message));
    return box;
  }

  token(piece) {
    const token = make("span", "t", piece.text);
    if (piece.kind !== "plain") {
      token.dataset.kind = piece.kind;
      token.style.setProperty("--c", this.colour(piece.kind, piece.drafter));
    }
    const parts = [KIND_WORDS[piece.kind]];
    if (piece.drafted) {
      parts.push(`drafter ${piece.drafter}`, `${piece.accepted} of ${piece.drafted} drafted tokens kept`);
    }
    if (piece.step !== undefined) parts.push(`step ${piece.step}`);
    token.title = parts.join(" · ");
    return token;
  }

  piece(piece) { if (piece.text && this.text) this.text.append(this.token(piece)); }

  progress() {
    const close = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 120;
    if (close) this.log.scrollTop = this.log.scrollHeight;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      if (this.talk.current) this.numbers(this.talk.current, this.foot);
    });
  }

  finished() {
    const message = this.talk.messages.at(-1);
    const close = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 200;
    this.log.lastElementChild.replaceWith(this.message(message));
    this.text = this.foot = null;
    if (close) this.log.scrollTop = this.log.scrollHeight;
    this.connection();
  }

  fault(message) {
    const box = make("div", "fault");
    box.setAttribute("role", "alert");
    const button = make("button", "quiet retry", "Try again");
    button.type = "button";
    button.onclick = () => this.talk.retry();
    box.append(make("span", "", message.fault));
    if (message === this.talk.messages.at(-1)) box.append(button);
    return box;
  }

  numbers(message, foot) {
    const { response, counts } = message;
    const total = response?.usage?.output_tokens ?? message.pieces.length;
    const items = [];
    const add = (value, word, title) => {
      const item = make("span", "", ` ${word}`);
      item.prepend(make("b", "", value));
      item.title = title;
      items.push(item);
    };
    if (message.pieces.length) items.push(this.mix(counts));
    if (message.status) items.push(make("span", "state",
      message.status === "stopped" ? "Stopped" : "Token limit reached"));
    if (total) add(String(total), total === 1 ? "token" : "tokens", "Output tokens of this answer");
    const timing = response?.metrics?.timing;
    const spec = response?.metrics?.speculative_decoding;
    if (timing) {
      add(rate(total, timing.e2e_ms), "tokens/s", "Output tokens over the whole time of the request");
      add(`${fixed(timing.ttft_ms, 0)} ms`, "TTFT", "Time to first token");
      if (timing.tpot_ms != null) add(`${fixed(timing.tpot_ms, 1)} ms`, "TPOT", "Time per output token");
    } else if (!message.done && message.first !== null) {
      add(rate(total, performance.now() - message.begun), "tokens/s", "So far, measured in the browser");
    }
    const cached = response?.usage?.input_tokens_details?.cached_tokens;
    if (cached) {
      add(share(cached, response.usage.input_tokens), "of the prompt cached",
        `${cached} of ${response.usage.input_tokens} prompt tokens were in the prefix cache`);
    }
    if (spec) {
      add(fixed(spec.mean_acceptance_length, 2), "acceptance length", "Committed tokens per verify step");
      if (spec.draft_acceptance_rate != null && spec.num_draft_tokens) {
        add(share(spec.num_accepted_draft_tokens, spec.num_draft_tokens), "acceptance rate",
          `${spec.num_accepted_draft_tokens} of ${spec.num_draft_tokens} drafted tokens accepted`);
      }
    }
    if (total && message.pieces.length) {
      const drafted = Object.entries(counts).filter(([key]) => key.startsWith("accepted"))
        .reduce((sum, [, count]) => sum + count, 0);
      add(share(drafted, message.pieces.length), "drafted", "Share of this answer that was drafted and accepted");
    }
    foot.replaceChildren(...items);
  }

  mix(counts) {
    const bar = make("span", "mix");
    const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
    const words = [];
    for (const [key, count] of Object.entries(counts).sort()) {
      const [kind, drafter] = key.split(":");
      const part = make("i");
      part.style.width = `${(100 * count) / total}%`;
      part.style.setProperty("--c", kind === "plain" ? "#c6ccd6" : this.colour(kind, drafter));
      bar.append(part);
      words.push(`${count} ${kind}${drafter ? ` (${drafter})` : ""}`);
    }
    bar.title = words.join(", ");
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", `Tokens: ${bar.title}`);
    return bar;
  }
}

function make(tag, name = "", text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}
// What a message sent now asks for; settings take a moment to arrive from their panel.
function chosen({ enabled, drafter, draft_length }) {
  if (!enabled) return "plain decoding";
  if (!drafter) return "the server's choice of drafter";
  return draft_length ? `${drafter}, D = ${draft_length}` : drafter;
}
function fixed(value, digits) { return value == null ? "–" : value.toFixed(digits); }
function rate(tokens, ms) { return ms > 0 ? ((1000 * tokens) / ms).toFixed(1) : "–"; }
function share(part, whole) { return whole ? `${Math.round((100 * part) / whole)} %` : "–"; }

let talk = null;

export default function ({ data, parentElement, setTriggerValue }) {
  if (!data) return undefined;
  if (!talk || talk.session !== data.session) {
    if (talk) { talk.view = null; talk.hangUp(); }
    talk = new Conversation(data.session);
  }
  talk.options = data.options;
  let view = talk.view;
  const fresh = !view || view.root !== parentElement;
  if (fresh) view = new View(parentElement, talk);
  view.update(data, (serial) => setTriggerValue("ticket", serial));
  talk.view = view;
  if (fresh) view.redraw();
  talk.answered(data.ticket);
  talk.connect();
  const mine = talk;
  return () => { if (mine.view === view) mine.view = null; };
}
