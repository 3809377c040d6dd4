// Jedis through twemproxy, which closes a connection that sends HELLO or CLIENT.
//
//   java JedisProxied HOST PORT

import java.util.Arrays;
import redis.clients.jedis.ClientSetInfoConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.RedisClient;

public final class JedisProxied {
  public static void main(String[] arguments) {
    DefaultJedisClientConfig config =
        DefaultJedisClientConfig.builder()
            .serverDefaultProtocol()
            .clientSetInfoConfig(ClientSetInfoConfig.DISABLED)
            .build();
    try (RedisClient client =
        RedisClient.builder()
            .hostAndPort(arguments[0], Integer.parseInt(arguments[1]))
            .clientConfig(config)
            .build()) {
      Checks.equal(client.mset("java:a", "1", "java:b", "2", "java:c", "3"), "OK", "MSET");
      Checks.equal(
          client.mget("java:a", "java:b", "java:c", "java:d"), Arrays.asList("1", "2", "3", null), "MGET");
    }
    System.out.println("Jedis proxied");
  }
}
