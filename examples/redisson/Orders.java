import java.time.Duration;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson: one limit for this program and for {@code ../redisson.rs}, five orders a second for
 * both together.
 *
 * <p>The argument is the number of orders, {@code REDIS_URL} the address of Redis.
 * {@code ../README.md} says how to run it.
 */
public final class Orders {
    public static void main(String[] arguments) {
        String url = System.getenv().getOrDefault("REDIS_URL", "redis://127.0.0.1:6379");
        int count = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 7;

        Config config = new Config();
        config.useSingleServer().setAddress(url);
        RedissonClient redisson = Redisson.create(config);
        try {
            RRateLimiter orders = redisson.getRateLimiter("orders");
            // Keeps a limit that Rust has set.
            orders.trySetRate(RateType.OVERALL, 5, Duration.ofSeconds(1));

            for (int order = 1; order <= count; order++) {
                orders.acquire();
                System.out.println("order " + order);
            }

            long left = orders.availablePermits();
            System.out.println(left + " of " + orders.getConfig().getRate() + " permits left");
        } finally {
            // Its threads would keep the process alive.
            redisson.shutdown();
        }
    }
}
