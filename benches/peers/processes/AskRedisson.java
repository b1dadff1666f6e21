import java.time.Duration;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** The real Redisson, with its own defaults: a user's limiters get their rates by trySetRate. */
final class AskRedisson {
    private AskRedisson() {}

    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + arguments[0]);
        RedissonClient client = Redisson.create(config);
        long[][] limits = Ask.limits(arguments);
        Ask.serve(Redisson.class.getPackage().getImplementationVersion(), name -> {
            RRateLimiter[] limiters = new RRateLimiter[limits.length];
            for (int i = 0; i < limits.length; i++) {
                limiters[i] = client.getRateLimiter(i == 0 ? name : name + ":" + i);
                limiters[i].trySetRate(RateType.OVERALL, limits[i][0], Duration.ofSeconds(limits[i][1]));
            }
            return (cost, then) -> decide(limiters, 0, cost, then);
        });
    }

    /** Asks each limit in turn, until one refuses. */
    private static void decide(RRateLimiter[] user, int at, long cost, Ask.Then then) {
        user[at].tryAcquireAsync(cost).whenComplete((taken, error) -> {
            if (error != null) {
                then.answered(Ask.Answer.FAILED, -1);
            } else if (!taken) {
                then.answered(Ask.Answer.REFUSED, -1);
            } else if (at + 1 < user.length) {
                decide(user, at + 1, cost, then);
            } else {
                then.answered(Ask.Answer.ADMITTED, -1);
            }
        });
    }
}
