import static java.nio.charset.StandardCharsets.UTF_8;

import java.net.URLEncoder;
import java.time.Duration;
import java.util.HexFormat;
import java.util.concurrent.TimeUnit;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Runs the Java of the pages, which snippets.rs puts in the place of the comments below. */
final class Pages {
    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[0]);
        RedissonClient redisson = Redisson.create(config);
        try {
            names(redisson, "a b*~+}\u00e9");
            digest(redisson, "Bearer%20abc", "0123456789abcdef0123456789abcdef".getBytes(UTF_8));
            orders(redisson);
        } finally {
            // Its threads keep the process alive.
            redisson.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    private static void names(RedissonClient redisson, String account) {
        /* names */
        spend(limiter);
    }

    private static void digest(RedissonClient redisson, String id, byte[] secret) throws Exception {
        /* digest */
        spend(limiter);
    }

    private static void orders(RedissonClient redisson) {
        /* orders */
    }

    private static void spend(RRateLimiter limiter) {
        System.out.println(limiter.getName() + " " + limiter.getConfig().getRate() + " " + limiter.tryAcquire() + " "
            + limiter.availablePermits());
    }

    private static void ship() {
        System.out.println("ship");
    }
}
