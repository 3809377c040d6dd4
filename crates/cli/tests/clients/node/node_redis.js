// What an application does with node-redis, against the server at HOST and PORT.
//
//   node node_redis.js HOST PORT [PACKAGE]
//
// PACKAGE is another version that package.json names. The program prints a line for each run that succeeds, and ends with an
// error at the first wrong reply.
'use strict';

const { assert, host, port, RATE_LIMIT, RELEASE, everyByte, equal, rejects, sleep, main } = require('./checks.js');
const name = process.argv[4] ?? 'redis';
const { createClient, createClientPool, defineScript, ErrorReply, MultiErrorReply, RESP_TYPES, WatchError } = require(name);
// The libraries identify themselves by the version of this package.
const { version } = require(require.resolve('@redis/client/package.json', { paths: [require.resolve(name)] }));

const limit = defineScript({
  NUMBER_OF_KEYS: 1,
  SCRIPT: RATE_LIMIT,
  parseCommand(parser, key, window, calls) {
    parser.pushKey(key);
    parser.push(String(window), String(calls));
  },
  transformReply: (reply) => reply === 1,
});

const options = (RESP, more = {}) => ({ socket: { host, port, reconnectStrategy: 5 }, RESP, scripts: { limit }, ...more });

function open(RESP, more) {
  const client = createClient(options(RESP, more));
  // Without a listener, a connection that the server closes ends the program.
  client.on('error', () => {});
  return client;
}

const connect = (RESP, more) => open(RESP, more).connect();

async function connection(client, RESP) {
  const info = await client.clientInfo();
  equal([info.resp, info.libName, info.libVer], [RESP, 'node-redis', version], 'HELLO and CLIENT SETINFO');
  equal(await client.ping(), 'PONG', 'PING');
  assert.ok((await client.info('server')).includes('redis_mode:standalone'), 'INFO');
  assert.ok((await client.configGet('maxmemory')).maxmemory, 'CONFIG GET');
}

async function values(client) {
  equal(await client.get('missing'), null, 'GET of no key');
  equal(await client.set('k', 'v'), 'OK', 'SET');
  equal(await client.set('k', 'other', { condition: 'NX' }), null, 'SET NX of a key');
  equal(await client.set('no', 'other', { condition: 'XX' }), null, 'SET XX of no key');
  equal(await client.set('k', 'w', { condition: 'XX', GET: true }), 'v', 'SET XX GET');
  equal(await client.set('k', 'w', { expiration: { type: 'EX', value: 100 } }), 'OK', 'SET EX');
  assert.ok((await client.ttl('k')) > 90, 'TTL');
  equal(await client.set('k', 'x', { expiration: 'KEEPTTL' }), 'OK', 'SET KEEPTTL');
  assert.ok((await client.pTTL('k')) > 90_000, 'PTTL');
  equal(await client.persist('k'), 1, 'PERSIST');
  equal(await client.expire('k', 50, 'NX'), 1, 'EXPIRE NX');
  equal(await client.expire('k', 10, 'GT'), 0, 'EXPIRE GT of a shorter one');
  equal(await client.getEx('k', { type: 'PX', value: 20 }), 'x', 'GETEX PX');
  await sleep(50);
  equal(await client.exists('k'), 0, 'a key after its expiry');
  equal(await client.mSet({ a: '1', b: '2.5' }), 'OK', 'MSET');
  equal(await client.mGet(['a', 'b', 'missing']), ['1', '2.5', null], 'MGET');
  equal(await client.mSetNX([['a', '9'], ['new', '9']]), 0, 'MSETNX');
  equal([await client.incr('a'), await client.incrBy('a', 40), await client.decr('a')], [2, 42, 41], 'counters');
  equal(Number(await client.incrByFloat('b', 0.25)), 2.75, 'INCRBYFLOAT');
  equal([await client.append('a', '!'), await client.getRange('a', 0, 0), await client.strLen('a')], [3, '4', 3], 'ranges');
  equal([await client.getDel('a'), await client.del(['a', 'b'])], ['41!', 1], 'GETDEL and DEL');
  const binary = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  await client.set(everyByte(255), everyByte(65_536));
  equal(await binary.get(everyByte(255)), everyByte(65_536), '65,536 bytes of all values');
  await client.set('text', 'naïve ☃ 𝄞');
  equal(await client.get('text'), 'naïve ☃ 𝄞', 'text');
}

async function errors(client) {
  await client.set('word', 'abc');
  await rejects(ErrorReply, client.incr('word'), 'not an integer');
  await rejects(ErrorReply, client.sendCommand(['NO-SUCH', 'x']), 'unknown command');
  await rejects(ErrorReply, client.set('word', 'x'.repeat(65_537)));
  equal(await client.get('word'), 'abc', 'the connection after errors');
}

async function pipelines(client) {
  const numbers = Array.from({ length: 2000 }, (_, i) => i);
  const options = { expiration: { type: 'EX', value: 1000 } };
  const replies = await Promise.all(numbers.map((i) => client.set(`p:${i}`, String(i), options)));
  assert.ok(replies.every((reply) => reply === 'OK'), 'SETs that the library sends together');
  equal(await Promise.all(numbers.map((i) => client.get(`p:${i}`))), numbers.map(String), 'GETs that it sends together');
  equal(await client.multi().incr('pipe').incr('pipe').execAsPipeline(), [1, 2], 'a pipeline');
  const found = new Set();
  for await (const keys of client.scanIterator({ MATCH: 'p:*', COUNT: 100 })) {
    keys.forEach((key) => found.add(key));
  }
  equal(found.size, 2000, 'scanIterator');
}

async function transactions(client, other) {
  equal(await client.multi().set('t', '1').incr('t').get('t').exec(), ['OK', 2, '2'], 'MULTI and EXEC');
  await rejects(MultiErrorReply, client.multi().set('t', 'x').incr('t').exec(), '1 commands failed');
  equal(await client.get('t'), 'x', 'a transaction after an error of one command');
  await client.watch('t');
  await other.set('t', '5');
  await rejects(WatchError, client.multi().set('t', '6').exec());
  await client.watch('t');
  equal(await client.multi().incr('t').exec(), [6], 'a watched key that has not changed');
}

async function scripts(client) {
  await client.scriptFlush();
  const calls = [];
  for (let i = 0; i < 5; i++) calls.push(await client.limit('rate', 60_000, 3));
  equal(calls, [true, true, true, false, false], 'a rate limiter');
  equal(await client.scriptExists(limit.SHA1), [1], 'SCRIPT EXISTS');
  await client.scriptFlush();
  await rejects(ErrorReply, client.evalSha(limit.SHA1, { keys: ['rate'], arguments: ['1', '1'] }), 'NOSCRIPT');
  equal(await client.multi().limit('rate', 60_000, 9).exec(), [true], 'a script in a transaction');
  const nested = await client.eval("return {1, 'two', {KEYS[1], ARGV[1]}}", { keys: ['k'], arguments: ['x'] });
  equal(nested, [1, 'two', ['k', 'x']], 'EVAL');
  await rejects(ErrorReply, client.eval("return redis.error_reply('MINE own')"), 'MINE own');
  equal(await client.set('lock', 'me', { condition: 'NX', expiration: { type: 'PX', value: 10_000 } }), 'OK', 'a lock');
  equal(await client.eval(RELEASE, { keys: ['lock'], arguments: ['other'] }), 0, "another one's release");
  equal(await client.eval(RELEASE, { keys: ['lock'], arguments: ['me'] }), 1, 'the release of a lock');
}

async function pools(RESP) {
  const pool = createClientPool(options(RESP), { minimum: 1, maximum: 4 });
  pool.on('error', () => {});
  await pool.connect();
  await Promise.all(Array.from({ length: 400 }, () => pool.incr('pooled')));
  // Optimistic transactions: each needs a connection of its own.
  const add = async (client) => {
    for (;;) {
      await client.watch('optimistic');
      const value = Number(await client.get('optimistic'));
      try {
        return await client.multi().set('optimistic', String(value + 10)).exec();
      } catch (error) {
        if (!(error instanceof WatchError)) throw error;
      }
    }
  };
  await Promise.all(Array.from({ length: 40 }, () => pool.execute(add)));
  equal(await pool.mGet(['pooled', 'optimistic']), ['400', '400'], 'a pool of 4 connections');
  await pool.close();
}

async function reconnection(client, other) {
  const before = await client.clientId();
  const again = new Promise((resolve) => client.once('ready', resolve));
  equal(await other.clientKill({ filter: 'ID', id: before }), 1, 'CLIENT KILL');
  await again;
  equal(await client.incr('reconnected'), 1, 'a command after the server closed the connection');
  assert.ok((await client.clientId()) !== before, 'another connection');
}

async function authentication(client, RESP) {
  const socket = { host, port, reconnectStrategy: false };
  const url = `redis://default:secret@${host}:${port}`;
  await client.configSet('requirepass', 'secret');
  try {
    const [wrong, none] = [open(RESP, { password: 'wrong', socket }), open(RESP, { socket })];
    await rejects(ErrorReply, wrong.connect(), 'WRONGPASS');
    // With RESP3, HELLO is refused already.
    await rejects(ErrorReply, none.connect().then(() => none.get('k')), 'NOAUTH');
    [wrong, none].filter((refused) => refused.isOpen).forEach((refused) => refused.destroy());
    const accepted = await connect(RESP, { url, socket: undefined });
    equal(await accepted.set('k', '1'), 'OK', 'a password');
    await accepted.close();
  } finally {
    await client.configSet('requirepass', '');
  }
}

main(async () => {
  for (const RESP of [2, 3]) {
    const [client, other] = [await connect(RESP), await connect(RESP)];
    await client.flushAll();
    await connection(client, RESP);
    await values(client);
    await errors(client);
    await pipelines(client);
    await transactions(client, other);
    await scripts(client);
    await pools(RESP);
    await reconnection(client, other);
    await authentication(client, RESP);
    await Promise.all([client.close(), other.close()]);
    console.log(`node-redis ${version} RESP${RESP}`);
  }
});
