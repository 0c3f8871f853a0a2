// The stock `openai` package of npm: calls of tools, put together by itself from a stream.
import OpenAI from "openai";

let input = "";
for await (const piece of process.stdin) input += piece;
const task = JSON.parse(input);
const client = new OpenAI({ baseURL: `${task.http}/v1`, apiKey: "none" });
const calls = [];
for (const { prompt, params } of task.cases) {
  const messages = [{ role: "user", content: prompt }];
  const done = await client.chat.completions.stream({ model: task.model, messages, ...params }).finalChatCompletion();
  const { name, arguments: text } = done.choices[0].message.tool_calls[0].function;
  calls.push([name, JSON.parse(text)]);
}
process.stdout.write(JSON.stringify(calls));
