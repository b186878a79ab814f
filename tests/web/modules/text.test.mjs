import assert from "node:assert/strict";
import { test } from "node:test";
import { diffJson, diffLists, diffTexts } from "../../../web/lib/differences.js";
import { showHidden, splitVisible } from "../../../web/lib/visible.js";

test("visible text stays as it is", () => {
  for (const text of ["", "plain", "tab\tand\nline", "Grüße, 你好, שלום", "👩‍👩‍👧 ❤️ 👍🏽", "e\u0301"]) {
    assert.deepEqual(splitVisible(text).filter((piece) => piece.label !== ""), [], text);
    assert.equal(showHidden(text), text);
  }
});

test("what is hidden is drawn and named", () => {
  const cases = [
    ["\x1b", "␛", "escape U+001B"], ["\0", "␀", "null U+0000"], ["\r", "␍", "carriage return U+000D"],
    ["\x7f", "␡", "delete U+007F"], ["\x9b", "⟨U+009B⟩", "hidden character U+009B"],
    ["\u202e", "⟨U+202E⟩", "right-to-left override U+202E"], ["\u2066", "⟨U+2066⟩", "left-to-right isolate U+2066"],
    ["\u200b", "⟨U+200B⟩", "zero width space U+200B"], ["\u200d", "⟨U+200D⟩", "zero width joiner U+200D"],
    ["\u2028", "⟨U+2028⟩", "line separator U+2028"], ["\ud800", "⟨U+D800⟩", "hidden character U+D800"],
    ["\udc00", "⟨U+DC00⟩", "hidden character U+DC00"], ["\u{e0041}", "⟨U+E0041⟩", "hidden character U+E0041"],
    ["\ufeff", "⟨U+FEFF⟩", "byte order mark U+FEFF"], ["\u3164", "⟨U+3164⟩", "hidden character U+3164"],
    ["\u{e0101}", "⟨U+E0101⟩", "hidden character U+E0101"], ["\ue000", "⟨U+E000⟩", "hidden character U+E000"],
  ];
  for (const [hidden, picture, label] of cases) {
    assert.deepEqual(splitVisible(`a${hidden}b`), [{ text: "a", label: "" }, { text: picture, label }, { text: "b", label: "" }]);
  }
});

test("every C0 and C1 control but tab and line feed is drawn", () => {
  for (let code = 0; code < 0xa1; code++) {
    const isHidden = (code < 0x20 && code !== 9 && code !== 10) || (code >= 0x7f && code <= 0xa0);
    assert.equal(splitVisible(String.fromCharCode(code))[0].label !== "", isHidden, code.toString(16));
  }
});

test("joiners and selectors are hidden unless they belong to a picture", () => {
  assert.equal(showHidden("a\u200db"), "a⟨U+200D⟩b");
  assert.equal(showHidden("a\ufe0f"), "a⟨U+FE0F⟩");
  assert.equal(showHidden("❤\ufe0f"), "❤\ufe0f");
});

test("a long text is split in a moment", () => {
  assert.equal(splitVisible("x".repeat(10_000_000)).length, 1);
  assert.equal(splitVisible("\u200b".repeat(100_000)).length, 100_000);
});

test("texts differ in words", () => {
  assert.deepEqual(diffTexts("one two", "one three"), [
    { kind: "same", text: "one " }, { kind: "removed", text: "two" }, { kind: "added", text: "three" },
  ]);
  assert.deepEqual(diffTexts("", ""), []);
});

test("no character of a text is lost between its pieces", () => {
  const odd = "a\rb\u2028c_d\u0301 \u00a0\n\n\ud800x\u{1f44d}é-7\n";
  for (const text of [odd, odd.repeat(10_000)]) {
    const changes = diffTexts(text, `${text}!`);
    assert.equal(changes.map((change) => change.text).join(""), `${text}!`);
    assert.equal(changes.filter((change) => change.kind !== "added").map((change) => change.text).join(""), text);
  }
});

test("values differ in lines of JSON, whatever the order of their keys", () => {
  assert.deepEqual(diffJson({ b: 1, a: 2 }, { a: 2, b: 1 }).map((change) => change.kind), ["same"]);
  const changes = diffJson({ a: 1 }, { a: 2 }).filter((change) => change.kind !== "same");
  assert.deepEqual(changes.map((change) => [change.kind, change.text.trim()]), [["removed", '"a": 1'], ["added", '"a": 2']]);
});

test("lists differ in values", () => {
  assert.deepEqual(diffLists([1, 2, 3], [1, 3]).map((change) => [change.kind, change.values]), [
    ["same", [1]], ["removed", [2]], ["same", [3]],
  ]);
});

test("a comparison that takes too long gives up", () => {
  const random = (seed) => Array.from({ length: 60_000 }, (_, i) => (i * seed) % 65_537);
  assert.equal(diffLists(random(40_503), random(30_011)), null);
});
