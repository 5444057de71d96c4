// The official SDKs in JavaScript, unchanged: `node node_sdks.mjs BASE_URL`, from a folder that has them installed.
// Prints one JSON object with what they read; the test that runs this checks it.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
const require = createRequire(pathToFileURL(process.cwd() + "/"));
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")));
const { default: Anthropic } = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")));
const { Ollama } = await import(pathToFileURL(require.resolve("ollama")));

const base = process.argv[2];
const openai = new OpenAI({ baseURL: `${base}/v1`, apiKey: "any", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: base, apiKey: "any", maxRetries: 0 });
const ollama = new Ollama({ host: base });
const messages = [{ role: "user", content: "Say hello." }];
const found = {};

const chat = await openai.chat.completions.create({ model: "m", messages, max_tokens: 8, temperature: 0 });
found.chat = { text: chat.choices[0].message.content, usage: chat.usage, id: chat._request_id };

const chunks = [];
for await (const chunk of await openai.chat.completions.create({
  model: "m", messages, max_tokens: 8, temperature: 0, stream: true, stream_options: { include_usage: true },
})) chunks.push(chunk);
found.stream = {
  text: chunks.flatMap((c) => c.choices).map((c) => c.delta.content ?? "").join(""),
  lastChoices: chunks.at(-1).choices.length,
  usage: chunks.at(-1).usage,
};

const response = await openai.responses.create({ model: "m", input: "Say hello.", max_output_tokens: 8, temperature: 0 });
found.response = { text: response.output_text, status: response.status, usage: response.usage };

const events = [];
for await (const event of await openai.responses.create({
  model: "m", input: "Say hello.", max_output_tokens: 8, temperature: 0, stream: true,
})) events.push(event);
found.responseStream = {
  numbers: events.map((e) => e.sequence_number),
  last: events.at(-1).type,
  text: events.filter((e) => e.type === "response.output_text.delta").map((e) => e.delta).join(""),
};

const message = anthropic.messages.stream({ model: "m", messages, max_tokens: 8, temperature: 0 });
const final = await message.finalMessage();
found.message = { text: final.content[0].text, usage: final.usage, stop: final.stop_reason };
found.counted = (await anthropic.messages.countTokens({ model: "m", messages })).input_tokens;

const lines = [];
for await (const part of await ollama.chat({ model: "m", messages, stream: true, options: { num_predict: 8, temperature: 0 } }))
  lines.push(part);
found.ollama = {
  text: lines.map((part) => part.message.content).join(""),
  count: lines.at(-1).eval_count,
  done: lines.map((part) => part.done),
};
found.tags = (await ollama.list()).models.map((one) => one.name);

// Stop sequences, and an answer that a schema binds.
const ask = (more) => openai.chat.completions.create({ model: "m", messages, max_tokens: 12, temperature: 0, ...more });
const free = await ask({});
const words = free.choices[0].message.content.split(" ");
const stop = ` ${words[2]}`;
const stopped = await ask({ stop: [stop] });
const pieces = [];
for await (const chunk of await ask({ stop, stream: true })) pieces.push(chunk);
const stoppedMessage = await anthropic.messages.create({ model: "m", messages, max_tokens: 12, temperature: 0, stop_sequences: [stop] });
const stoppedOllama = await ollama.chat({ model: "m", messages, options: { num_predict: 12, temperature: 0, stop: [stop] } });
found.stop = {
  expected: words.slice(0, 2).join(" "),
  texts: [
    stopped.choices[0].message.content,
    pieces.flatMap((c) => c.choices).map((c) => c.delta.content ?? "").join(""),
    stoppedMessage.content[0].text,
    stoppedOllama.message.content,
  ],
  ends: [
    stopped.choices[0].finish_reason,
    pieces.flatMap((c) => c.choices).map((c) => c.finish_reason).filter(Boolean).join(),
    stoppedMessage.stop_reason,
    stoppedOllama.done_reason,
  ],
  fingerprints: [...new Set([free, stopped, ...pieces].map((one) => one.system_fingerprint))],
};

const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false };
const form = { type: "json_schema", name: "x", schema, strict: true };
const parsed = await openai.chat.completions.parse({
  model: "m", messages, max_tokens: 40, temperature: 0,
  response_format: { type: "json_schema", json_schema: { name: "x", schema, strict: true } },
});
const formed = await openai.responses.create({ model: "m", input: "Say hello.", max_output_tokens: 40, temperature: 0, text: { format: form } });
const formedMessage = await anthropic.messages.create({
  model: "m", messages, max_tokens: 40, temperature: 0, output_config: { format: { type: "json_schema", schema } },
});
const formedOllama = await ollama.chat({ model: "m", messages, format: schema, options: { num_predict: 40, temperature: 0 } });
found.schema = [
  parsed.choices[0].message.content, formed.output_text, formedMessage.content[0].text, formedOllama.message.content,
];

const several = await ask({ n: 2, max_tokens: 3, logprobs: true, top_logprobs: 2 });
found.choices = several.choices.map((c) => [
  c.index, c.message.content, c.logprobs.content.map((t) => t.token).join(""), c.logprobs.content[0].top_logprobs.length,
]);

found.errors = {};
for (const [name, ask] of Object.entries({
  openai: () => openai.chat.completions.create({ model: "other", messages }),
  anthropic: () => anthropic.messages.create({ model: "other", messages, max_tokens: 1 }),
  ollama: () => ollama.chat({ model: "other", messages }),
})) {
  try {
    await ask();
  } catch (error) {
    found.errors[name] = [error.status ?? error.status_code, String(error.message)];
  }
}
console.log(JSON.stringify(found));
