// One request: its text split by the origin of each token, its steps, and the numbers that are shown of it.

// Splits streamed text into what each token gave. A token that is part of a character shows U+FFFD alone, a special
// token is not in the text, and some tokenizers lose a token's first space when it stands alone.
export class Aligner {
  tokens = [];

  // -> [{ text, origin }]; the texts together are exactly the text given.
  split(text, tokens) {
    this.tokens.push(...tokens);
    const parts = [];
    while (text) {
      const found = this.#nextMatch(text);
      const size = found ? found.end : text.length;
      const used = found ? this.tokens.splice(0, found.index + 1) : this.tokens.splice(0);
      if (found && found.start > 0 && found.index > 0) {
        parts.push({ text: text.slice(0, found.start), origin: used.at(-2).origin });
        parts.push({ text: text.slice(found.start, size), origin: used.at(-1).origin });
      } else {
        parts.push({ text: text.slice(0, size), origin: used.at(-1)?.origin ?? "plain" });
      }
      text = text.slice(size);
    }
    return parts;
  }

  // The first waiting token whose text occurs, and where: { index, start, end }.
  #nextMatch(text) {
    for (let index = 0; index < this.tokens.length; index += 1) {
      const token = this.tokens[index].text;
      if (!token || token.includes("\ufffd")) continue;
      const start = text.indexOf(token);
      if (start === 0 || (start > 0 && (index > 0 || text.slice(0, start).trim() === ""))) {
        return { index, start, end: start + token.length };
      }
    }
    return null;
  }
}

export class Run {
  constructor(now) {
    this.text = "";
    this.ids = [];
    this.steps = 0;
    this.accepted = 0; // guesses kept
    this.examined = 0; // guesses whose fate was decided
    this.finish = null;
    this.started = now;
    this.first = null; // when the first tokens came, and how many
    this.last = now;
    this.aligner = new Aligner();
  }

  // A chunk of the stream -> { parts, step, tokens } to show.
  add(chunk, now) {
    const choice = chunk.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    const tokens = chunk.outrider?.tokens ?? [];
    const step = chunk.outrider?.step ?? null;
    this.text += text;
    this.ids.push(...tokens.map((token) => token.id));
    this.finish = choice?.finish_reason ?? this.finish;
    if (tokens.length) {
      this.first ??= { time: now, tokens: tokens.length };
      this.last = now;
    }
    if (step && tokens.length) {
      this.steps += 1;
      this.accepted += step.accepted;
      this.examined += Math.min(step.accepted + 1, step.drafted.length);
    }
    return { parts: this.aligner.split(text, tokens), step, tokens };
  }

  get acceptance() {
    return this.examined ? this.accepted / this.examined : null;
  }

  get tokensPerRun() {
    return this.steps ? this.ids.length / this.steps : null;
  }

  // Tokens per second after the first ones: reading the prompt is not what the two runs differ in.
  get speed() {
    const seconds = this.first ? (this.last - this.first.time) / 1000 : 0;
    return seconds > 0 ? (this.ids.length - this.first.tokens) / seconds : null;
  }
}

export function identical(a, b) {
  return a.text === b.text && a.ids.length === b.ids.length && a.ids.every((id, place) => id === b.ids[place]);
}
