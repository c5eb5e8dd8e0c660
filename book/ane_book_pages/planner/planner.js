/* The planner's arithmetic, as in mlprogram/src/mlprogram/ane/cost/model.py, and the page around it.
 *
 * A range is [low, high]. The test tests/book/test_cost_planner.py compares `work` and
 * `predict` with the library for every choice, through window.anePlanner.
 */
(() => {
  const forms = document.querySelectorAll("form.ane-planner");
  const form = forms[forms.length - 1]; // a notebook's cell may have been run before
  const data = JSON.parse(form.querySelector('script[type="application/json"]').textContent);
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  /* What a token asks of an engine; null where a layer is larger than a program may be. */
  function work({ model, quant, limit, context }) {
    const { slot, kept, plans } = data.models[model];
    const cut = plans[quant][limit];
    if (cut === null) return null;
    const bytes = sum(cut.shards) + sum(cut.head);
    return {
      shards: cut.shards, head: cut.head, form: data.forms[quant], bytes,
      slots: context, cache: context * slot + kept, programs: cut.shards.length + cut.head.length,
    };
  }

  /* Milliseconds to read so many bytes at a rate in GB/s. */
  const read = (bytes, rate) => [bytes / (rate.high * 1e6), bytes / (rate.low * 1e6)];

  /* The terms of a token's time and their sum, in ms. */
  function predict(asked, chip) {
    const { packed, cache, program } = data.parameters;
    const rate = data.chips[chip];
    let [low, high] = read(asked.bytes, rate);
    const compressed = asked.form === "packed";
    if (compressed) [low, high] = [low * packed.low, high * packed.high];
    const terms = [
      {
        what: `${compressed ? "packed weights" : "weights"}, ${size(asked.bytes)}`,
        ms: [low, high],
        evidence: compressed ? `${rate.evidence}; ${packed.evidence}` : rate.evidence,
      },
      {
        what: `cache of ${group(asked.slots, 0)} slots, ${size(asked.cache)}`,
        ms: read(asked.cache, cache),
        evidence: cache.evidence,
      },
      {
        what: `${asked.programs} program${asked.programs > 1 ? "s" : ""}`,
        ms: [asked.programs * program.low, asked.programs * program.high],
        evidence: program.evidence,
      },
    ];
    const ms = [sum(terms.map((t) => t.ms[0])), sum(terms.map((t) => t.ms[1]))];
    return { terms, ms, tokens: [1e3 / ms[1], 1e3 / ms[0]] };
  }

  const group = (value, digits) => {
    const [whole, part] = value.toFixed(digits).split(".");
    const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
    return part === undefined ? grouped : `${grouped}.${part}`;
  };
  const size = (bytes) => `${group(bytes / 1e6, 1)} MB`;
  const text = ([low, high]) => {
    const ends = [group(low, 1), group(high, 1)];
    return ends[0] === ends[1] ? ends[0] : ends.join(" to ");
  };

  function row(cells, tag) {
    const line = document.createElement("tr");
    for (const cell of cells) {
      line.appendChild(document.createElement(tag)).textContent = cell;
    }
    return line;
  }

  function chosen() {
    const fields = Object.fromEntries(new FormData(form));
    return { ...fields, context: Number(fields.context) };
  }

  function show() {
    const choice = chosen();
    const output = form.querySelector("output");
    output.replaceChildren();
    const say = (what, kind) => {
      const line = output.appendChild(document.createElement("p"));
      line.textContent = what;
      line.className = kind;
    };
    const { longest } = data.models[choice.model];
    if (!Number.isInteger(choice.context) || choice.context < 2 || choice.context > longest) {
      say(`The context of this model is 2 to ${group(longest, 0)} tokens.`, "refused");
      return;
    }
    const asked = work(choice);
    if (asked === null) {
      say("One layer is larger than that: allow larger programs, or fewer bits.", "refused");
      return;
    }
    const { terms, ms, tokens } = predict(asked, choice.chip);
    say(`${text(tokens)} tokens/s`, "answer");
    const largest = Math.max(...asked.shards, ...asked.head);
    say(
      `${text(ms)} ms a token; ${asked.shards.length} shards and ${asked.head.length} of the ` +
        `head, the largest ${size(largest)}, ${size(asked.bytes)} in all`,
      "plan",
    );
    const table = output.appendChild(document.createElement("table"));
    table.appendChild(row(["rests on", "ms", "evidence"], "th"));
    for (const term of terms) table.appendChild(row([term.what, text(term.ms), term.evidence], "td"));
  }

  window.anePlanner = { data, work, predict };
  form.addEventListener("input", show);
  show();
})();
