import assert from "node:assert/strict";
import { test } from "node:test";
import { getKey, keyHeaders, setKey, takeKeyFromAddress } from "../../../web/lib/key.js";
import { readEvents, readJsonLines, readLines } from "../../../web/lib/streams.js";

async function* inPieces(text, size) {
  const bytes = new TextEncoder().encode(text);
  for (let i = 0; i < bytes.length; i += size) yield bytes.subarray(i, i + size);
}

async function collect(values) {
  const found = [];
  for await (const value of values) found.push(value);
  return found;
}

test("lines are read from pieces of any size", async () => {
  const text = "one\r\n\nthree é👍\nlast";
  for (let size = 1; size <= text.length + 8; size++) {
    assert.deepEqual(await collect(readLines(inPieces(text, size))), ["one", "", "three é👍", "last"]);
  }
  assert.deepEqual(await collect(readLines(inPieces("", 1))), []);
  assert.deepEqual(await collect(readLines(inPieces("a\n", 1))), ["a"]);
});

test("a line of 10 MB in small pieces is read in a moment", async () => {
  const [line] = await collect(readLines(inPieces(`${"x".repeat(10_000_000)}\n`, 1000)));
  assert.equal(line.length, 10_000_000);
});

test("JSON lines are parsed, and empty ones skipped", async () => {
  assert.deepEqual(await collect(readJsonLines(inPieces('{"n": 0}\n\n{"n": 1}', 3))), [{ n: 0 }, { n: 1 }]);
  await assert.rejects(collect(readJsonLines(inPieces('{"n": 0}\n{"n"', 3))), SyntaxError);
});

test("events are read as the standard says", async () => {
  const body = 'event: a\ndata: {"n": 0}\n\n: comment\n\ndata:{"n":\ndata: 1}\n\ndata: [DONE]\n\ndata: {"n": 2}\n';
  for (const size of [1, 2, 7, 1000]) assert.deepEqual(await collect(readEvents(inPieces(body, size))), [{ n: 0 }, { n: 1 }]);
});

function makePlace(hash) {
  const items = new Map();
  const urls = [];
  return {
    urls,
    location: { hash, pathname: "/ui/turns", search: "?status=failed" },
    history: { replaceState: (_data, _title, url) => urls.push(url) },
    storage: {
      getItem: (name) => items.get(name) ?? null,
      setItem: (name, value) => items.set(name, value),
      removeItem: (name) => items.delete(name),
    },
  };
}

test("a key moves from the fragment to the storage of the tab", () => {
  const place = makePlace("#key=sk-1%2B2&event=41");
  assert.equal(takeKeyFromAddress(place), true);
  assert.deepEqual(place.urls, ["/ui/turns?status=failed#event=41"]);
  assert.equal(getKey(place), "sk-1+2");
});

test("an address without a key stays", () => {
  const place = makePlace("#event=41");
  setKey(place, " sk-3 ");
  assert.equal(takeKeyFromAddress(place), false);
  assert.deepEqual(place.urls, []);
  assert.equal(getKey(place), "sk-3");
});

test("an empty key forgets the stored one", () => {
  const place = makePlace("#key=");
  setKey(place, "sk-4");
  assert.equal(takeKeyFromAddress(place), true);
  assert.equal(getKey(place), "");
  assert.deepEqual(place.urls, ["/ui/turns?status=failed"]);
});

test("a key that no header can have is not sent", () => {
  assert.deepEqual(keyHeaders("sk-5"), { authorization: "Bearer sk-5" });
  for (const key of ["", "a b", "a\r\nx: y", "é"]) assert.deepEqual(keyHeaders(key), {});
});
