// What the programs for libraries of Node.js share: checks, scripts, and the address of the server.
'use strict';

const assert = require('node:assert');

const [host, port] = [process.argv[2], Number(process.argv[3])];

// A fixed window: it counts a call, and starts the window at the first one.
const RATE_LIMIT = `
local calls = redis.call('INCR', KEYS[1])
if calls == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return calls <= tonumber(ARGV[2])
`;
// Deletes a lock only if the caller still holds it.
const RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

const everyByte = (length) => Buffer.from(Array.from({ length }, (_, i) => i % 256));

function equal(found, expected, what) {
  assert.deepStrictEqual(found, expected, `${what}: ${JSON.stringify(found)} instead of ${JSON.stringify(expected)}`);
}

/** The promise must be rejected with an error of this class, with this text in its message. */
async function rejects(kind, promise, text = '') {
  let reply;
  try {
    reply = await promise;
  } catch (error) {
    assert.ok(error instanceof kind, `${error.stack} instead of ${kind.name}`);
    assert.ok(error.message.includes(text), `${text} in ${error.message}`);
    return;
  }
  assert.fail(`${JSON.stringify(reply)} instead of ${kind.name}`);
}

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Runs the program. If it waits for something that never happens, it ends with status 1. */
async function main(run) {
  process.exitCode = 1;
  await run();
  // A library may keep a timer after its connections were closed.
  process.exit(0);
}

module.exports = { assert, host, port, RATE_LIMIT, RELEASE, everyByte, equal, rejects, sleep, main };
