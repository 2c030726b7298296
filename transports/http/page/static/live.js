// Ask the server once a second for what is new, and keep what it said.

const EVERY_MS = 1000;
// For whoever asked for less motion.
const CALMLY_MS = 5000;
const MOST_ERRORS = 50;

export class Live {
  // `changed` is called after each answer, `lost` when there is none.
  constructor(changed, lost) {
    this.changed = changed;
    this.lost = lost;
    this.paused = false;
    this.turn = 0;
    this.watch("");
    const calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.everyMs = () => (calm.matches ? CALMLY_MS : EVERY_MS);
    document.addEventListener("visibilitychange", () => this.go());
    this.go();
  }

  // Follow one model, "" for all together.
  watch(model) {
    this.model = model;
    this.forget();
    if (this.everyMs) this.go();
  }

  pause(paused) {
    this.paused = paused;
    this.go();
  }

  forget() {
    this.next = 0;
    this.series = {};
    this.errors = [];
    this.now = {};
  }

  // Begin the one round of asking anew; an earlier one ends by itself. Ask once in any case: what
  // is shown must be of the model that is watched, paused or not.
  async go() {
    const turn = (this.turn += 1);
    do {
      await this.ask(turn);
      await new Promise((wake) => setTimeout(wake, this.everyMs()));
    } while (turn === this.turn && !this.paused && !document.hidden);
  }

  async ask(turn) {
    const query = new URLSearchParams({ model: this.model, since: this.next });
    try {
      const answer = await fetch(`/live?${query}`);
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const said = await answer.json();
      if (turn !== this.turn) return;
      this.take(said);
      this.changed(this);
    } catch (error) {
      if (turn === this.turn) this.lost(error);
    }
  }

  take(said) {
    this.server = said.server;
    this.state = said.state;
    this.serving = said.serving;
    if (said.first === undefined) return; // nobody counts
    // Another server than before, or too long ago: what is known does not join on.
    const restarted = said.first < this.next;
    if (said.first !== this.next) this.forget();
    if (restarted) return;
    for (const [name, values] of Object.entries(said.series)) {
      this.series[name] = [...(this.series[name] ?? []), ...values].slice(-said.kept);
    }
    this.errors = [...this.errors, ...said.errors].slice(-MOST_ERRORS);
    this.now = said.now;
    this.kept = said.kept;
    this.next = said.next;
  }
}
