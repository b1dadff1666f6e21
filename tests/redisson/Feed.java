import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateIntervalUnit;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** A Redisson that counts by windows takes a permit of feed, for snippets.rs. */
final class Feed {
    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.setCodec(new StringCodec()).useSingleServer().setAddress(arguments[0]);
        RedissonClient redisson = Redisson.create(config);
        try {
            RRateLimiter feed = redisson.getRateLimiter("feed");
            System.out.println(feed.trySetRate(RateType.OVERALL, 1, 1, RateIntervalUnit.DAYS));
            System.out.println(feed.getConfig().getRate() + " " + feed.getConfig().getRateInterval());
            System.out.println(feed.tryAcquire() + " " + feed.availablePermits());
        } finally {
            // Its threads keep the process alive.
            redisson.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }
}
