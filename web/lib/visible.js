// Characters that a reader cannot see, or that change what others look like, become pictures with a name.

/** @typedef {{text: string, label: string}} Piece A piece of text; `label` names a picture and is empty otherwise. */

/** @type {[number, string][]} */
const NAMED = [
  [0x00, "null"],
  [0x07, "bell"],
  [0x08, "backspace"],
  [0x0d, "carriage return"],
  [0x1b, "escape"],
  [0x7f, "delete"],
  [0x85, "next line"],
  [0xa0, "no-break space"],
  [0xad, "soft hyphen"],
  [0x61c, "Arabic letter mark"],
  [0x180e, "Mongolian vowel separator"],
  [0x200b, "zero width space"],
  [0x200c, "zero width non-joiner"],
  [0x200d, "zero width joiner"],
  [0x200e, "left-to-right mark"],
  [0x200f, "right-to-left mark"],
  [0x2028, "line separator"],
  [0x2029, "paragraph separator"],
  [0x202a, "left-to-right embedding"],
  [0x202b, "right-to-left embedding"],
  [0x202c, "pop directional formatting"],
  [0x202d, "left-to-right override"],
  [0x202e, "right-to-left override"],
  [0x2060, "word joiner"],
  [0x2066, "left-to-right isolate"],
  [0x2067, "right-to-left isolate"],
  [0x2068, "first strong isolate"],
  [0x2069, "pop directional isolate"],
  [0xfeff, "byte order mark"],
];
const NAMES = new Map(NAMED);

/**
 * C0 without tab and line feed, DEL and C1; then all of the category Format (bidi controls, zero width characters, tags),
 * line and paragraph separators, private use, variation selectors, fillers that look like a space, and surrogates without
 * their half: with the flag `u`, a whole pair is never a surrogate.
 */
const HIDDEN =
  /[\0-\x08\x0b-\x1f\x7f-\x9f\xa0\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cs}\p{Variation_Selector}\u115f\u1160\u3164\uffa0]|\u034f|\u17b4|\u17b5/gu;

const JOINERS = /^[\u200d\ufe0e\ufe0f]$/;
/** A joiner between two emoji, and a variation selector after a symbol, belong to the picture that is drawn. */
const JOINED = /\p{Extended_Pictographic}\p{Emoji_Modifier}?$/u;

/**
 * Splits a text into visible pieces and pictures.
 * @param {string} text
 * @returns {Piece[]}
 */
export function splitVisible(text) {
  /** @type {Piece[]} */
  const pieces = [];
  let start = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (JOINERS.test(match[0]) && JOINED.test(text.slice(Math.max(0, match.index - 4), match.index))) continue;
    if (match.index > start) pieces.push({ text: text.slice(start, match.index), label: "" });
    pieces.push(drawCharacter(/** @type {number} */ (match[0].codePointAt(0))));
    start = match.index + match[0].length;
  }
  if (start < text.length) pieces.push({ text: text.slice(start), label: "" });
  return pieces;
}

/** Returns a text in which nothing is hidden, for titles and attributes. @type {(text: string) => string} */
export function showHidden(text) {
  return splitVisible(text)
    .map((piece) => piece.text)
    .join("");
}

/** @type {(code: number) => Piece} */
function drawCharacter(code) {
  const number = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  const label = `${NAMES.get(code) ?? "hidden character"} ${number}`;
  if (code < 0x20) return { text: String.fromCharCode(0x2400 + code), label };
  return { text: code === 0x7f ? "\u2421" : `\u27e8${number}\u27e9`, label };
}
