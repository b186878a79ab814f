// Reads every case with the openai Node SDK. Argument: a file with {url, cases: [{name, responses, chat?}]}.
// Prints a JSON object: name -> {responses, chat?, again}, each {events, final, raised, raisedAtTheEnd}.
// `again` is the response stream resumed after event 1.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const { url, cases } = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });

function describeError(error) {
  return { kind: error.constructor.name, message: error.message, code: error.code ?? null, status: error.status ?? null };
}

async function read(stream, finish) {
  const result = { events: [], final: null, raised: null, raisedAtTheEnd: null };
  try {
    for await (const event of stream) result.events.push(event);
  } catch (error) {
    result.raised = describeError(error);
    return result;
  }
  try {
    result.final = await finish(stream);
  } catch (error) {
    result.raisedAtTheEnd = describeError(error);
  }
  return result;
}

const results = {};
for (const { name, responses, chat } of cases) {
  results[name] = {
    responses: await read(client.responses.stream(responses), (stream) => stream.finalResponse()),
    chat: chat && (await read(client.chat.completions.stream(chat), (stream) => stream.finalChatCompletion())),
  };
  const responseId = results[name].responses.events[0]?.response?.id;
  if (responseId && !results[name].responses.raised) {
    const resumed = client.responses.stream({ response_id: responseId, starting_after: 1 });
    results[name].again = await read(resumed, (stream) => stream.finalResponse());
  }
}
process.stdout.write(JSON.stringify(results));
