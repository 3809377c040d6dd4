// node-redis and ioredis through twemproxy, which closes a connection that sends HELLO, CLIENT or INFO.
//
//   node proxied.js HOST PORT
'use strict';

const { host, port, equal, main } = require('./checks.js');
const { createClient } = require('redis');
const { Redis } = require('ioredis');

main(async () => {
  const client = createClient({ socket: { host, port, reconnectStrategy: false }, RESP: 2, disableClientInfo: true });
  client.on('error', () => {});
  await client.connect();
  await client.mSet({ 'js:a': '1', 'js:b': '2', 'js:c': '3' });
  equal(await Promise.all(['js:a', 'js:b', 'js:c'].map((key) => client.incr(key))), [2, 3, 4], 'a pipeline');
  await client.close();
  console.log('node-redis proxied');

  const other = new Redis({ host, port, protocol: 2, disableClientInfo: true, enableReadyCheck: false, retryStrategy: null });
  other.on('error', () => {});
  equal(await other.mget('js:a', 'js:b', 'js:c', 'js:d'), ['2', '3', '4', null], 'MGET');
  other.disconnect();
  console.log('ioredis proxied');
});
