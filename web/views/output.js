// What the model generated, token by token, with how likely each token was and what else was likely.
import { html } from "../lib/html.js";
import { findStep } from "../lib/state-table.js";
import {
  findEvent,
  formatProbability,
  formatSurprise,
  isTaken,
  listTexts,
  listTokens,
  SHADES,
  shadeOf,
} from "../lib/tokens.js";
import { useChosenEvent } from "../ui/hooks.js";
import { ShortText } from "../ui/text.js";
import { VirtualList } from "../ui/virtual-list.js";
import { useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";

/** Tokens that are drawn at once. */
const PAGE_SIZE = 1000;
/** Tokens that Page up and down pass. */
const LEAP = 50;
/** Token ids of one event that are shown. */
const MAX_IDS = 20;

/** @param {{log: TurnLog}} props */
export function Output({ log }) {
  const tokens = useMemo(() => listTokens(log.lines, log.fold.events), [log.lines, log.fold, log.count]);
  if (log.count === 0) return log.reading ? html`<p>Reading …</p>` : html`<p>This turn has no events.</p>`;
  return html`<section aria-label="Output">${
    tokens.length > 0 ? html`<${Tokens} log=${log} tokens=${tokens} />` : html`<${Texts} log=${log} />`
  }</section>`;
}

/** @param {{log: TurnLog, tokens: OutputToken[]}} props */
function Tokens({ log, tokens }) {
  const [wanted, chooseEvent] = useChosenEvent();
  // A step may have several tokens: the address names its event only.
  const [picked, setPicked] = useState(-1);
  const current = tokens[picked]?.event === wanted ? picked : findEvent(tokens, wanted ?? 0);
  const first = current - (current % PAGE_SIZE);
  const end = Math.min(first + PAGE_SIZE, tokens.length);
  const choose = (/** @type {number} */ i) => {
    const next = Math.max(0, Math.min(tokens.length - 1, i));
    setPicked(next);
    chooseEvent(tokens[next]?.event ?? 0);
  };
  return html`<p class="switches">Probability: ${SHADES.map(([, words], i) => html`<span class=${`shade-${i}`}>${words}</span>`)}</p>
    <${TokenBox} tokens=${tokens} first=${first} end=${end} current=${current} onChoose=${choose} />
    <p class="switches">
      <span id="tokens-shown">tokens ${(first + 1).toLocaleString("en")} to ${end.toLocaleString("en")} of ${tokens.length.toLocaleString("en")}</span>
      ${first > 0 && html`<button type="button" onClick=${() => choose(first - PAGE_SIZE)}>Tokens before</button>`}
      ${end < tokens.length && html`<button type="button" onClick=${() => choose(end)}>Next tokens</button>`}
    </p>
    <${ChosenToken} token=${tokens[current]} number=${current + 1} line=${findStep(log.lines, tokens[current]?.event ?? 0)} />`;
}

/**
 * @param {{tokens: OutputToken[], first: number, end: number, current: number, onChoose: (i: number) => void}} props
 */
function TokenBox({ tokens, first, end, current, onChoose }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => showChosen(box.current), [current]);
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const steps = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, PageUp: -LEAP, PageDown: LEAP };
    const ends = { Home: 0, End: tokens.length - 1 };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    const next = step === undefined ? ends[/** @type {keyof typeof ends} */ (event.key)] : current + step;
    if (next === undefined) return;
    event.preventDefault();
    onChoose(next);
  };
  return html`<div ref=${box} class="output-tokens mono" role="listbox" tabindex="0" aria-label="Tokens" aria-orientation="horizontal"
    aria-activedescendant=${`token-${current}`} onKeyDown=${onKeyDown}>${tokens
      .slice(first, end)
      .map(
        (token, i) =>
          html`<${TokenOption} key=${first + i} token=${token} index=${first + i} count=${tokens.length} chosen=${first + i === current} onChoose=${onChoose} />`,
      )}</div>`;
}

/** Scrolls the box, and nothing else, to the chosen token. @param {HTMLElement | null} box */
function showChosen(box) {
  const chosen = box?.querySelector('[aria-selected="true"]');
  if (!(box !== null && chosen instanceof HTMLElement)) return;
  const bottom = chosen.offsetTop + chosen.offsetHeight;
  if (chosen.offsetTop < box.scrollTop || bottom > box.scrollTop + box.clientHeight)
    box.scrollTop = Math.max(0, chosen.offsetTop - box.clientHeight / 2);
}

/** @param {{token: OutputToken, index: number, count: number, chosen: boolean, onChoose: (i: number) => void}} props */
function TokenOption({ token, index, count, chosen, onChoose }) {
  const choose = useRef(onChoose);
  choose.current = onChoose;
  return useMemo(() => {
    const shade = shadeOf(token.logprob);
    return html`<span id=${`token-${index}`} class=${`token shade-${shade}`} role="option" aria-selected=${chosen}
      aria-setsize=${count} aria-posinset=${index + 1} onClick=${() => choose.current(index)}><${ShortText} value=${token.text} />${
        token.text === "" && html`<sub><${ShortText} value=${token.id} /></sub>`
      }<span class="unseen"> ${SHADES[shade]?.[1] ?? "no probability"}</span>${token.text.includes("\n") && html`<br />`}</span>`;
  }, [token, index, count, chosen]);
}

/** @param {{token: OutputToken | undefined, number: number, line: Record<string, any>}} props */
function ChosenToken({ token, number, line }) {
  if (token === undefined) return "";
  return html`<section aria-label="Chosen token">
    <h2>Token ${number.toLocaleString("en")}: “<${ShortText} value=${token.text} />”</h2>
    <dl class="figures">
      <div><dt>id</dt><dd><${ShortText} value=${token.id ?? "–"} /></dd></div>
      <div><dt>probability</dt><dd>${formatProbability(token.logprob)}</dd></div>
      <div><dt>−log p</dt><dd>${formatSurprise(token.logprob)}</dd></div>
      <div><dt>event</dt><dd>${token.event}</dd></div>
      ${typeof line["step"] === "number" && html`<div><dt>step</dt><dd>${line["step"]}</dd></div>`}
      ${typeof line["at_us"] === "number" && html`<div><dt>time</dt><dd>${(line["at_us"] / 1e6).toFixed(3)} s</dd></div>`}
    </dl>
    <h3>Alternatives</h3>
    ${
      token.top.length === 0
        ? html`<p>The request asked for none.</p>`
        : html`<ol class="alternatives">${token.top.map(
            (each) =>
              html`<li class=${isTaken(token, each) ? "taken" : null}>“<${ShortText} value=${each.text} />” ${each.id !== null && html`<span class="faint">id <${ShortText} value=${each.id} /></span>`} · ${formatProbability(each.logprob)}${isTaken(token, each) && " ● generated"}</li>`,
          )}</ol>`
    }
  </section>`;
}

/** The output without log-probabilities: the texts of the events, with the token ids of their steps. @param {{log: TurnLog}} props */
function Texts({ log }) {
  const [wanted, choose] = useChosenEvent();
  const rows = useMemo(() => listTexts(log.lines, log.fold.events), [log.lines, log.fold, log.count]);
  const draw = useMemo(
    () => (/** @type {number} */ i) => {
      const { event = 0, text = "", ids = [] } = rows[i] ?? {};
      const more = ids.length > MAX_IDS ? ` and ${ids.length - MAX_IDS} more` : "";
      return html`<span class="number">${event}</span><${ShortText} value=${text} />${
        ids.length > 0 &&
        html` <span class="faint">ids <${ShortText} value=${ids.slice(0, MAX_IDS).join(" ")} />${more}</span>`
      }`;
    },
    [rows],
  );
  return html`<p>This turn has no log-probabilities: its request did not ask for them, or it was not recorded. These are its texts, by events.</p>
    ${
      rows.length === 0
        ? html`<p>This turn has no texts.</p>`
        : html`<${VirtualList} label="Texts by events" count=${rows.length} current=${findEvent(rows, wanted ?? 0)} draw=${draw}
            onChoose=${(/** @type {number} */ i) => choose(rows[i]?.event ?? 0)} />`
    }`;
}
