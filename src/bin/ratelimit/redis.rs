//! Connects to Redis, and finds the limiter that a command names.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{Request, request::Parts};
use tower_ratelimit::{
    Limit, RateLimitLayer, RedisStore, Rule,
    key::{Key, KeyExtractor, NoKey, Secret},
};
use url::Url;

use crate::{Stop, out::in_file};

/// No request waits for what a command asks: a slow server is no error so soon.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server that a command asks, and as which client.
#[derive(clap::Args)]
pub(crate) struct RedisOptions {
    /// The address of Redis
    ///
    /// As in `redis://127.0.0.1:6379/`; `rediss://` is by TLS. With `--cluster` several, separated
    /// by commas.
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    #[arg(required = true)]
    redis: Vec<String>,
    /// The addresses are nodes of a Redis Cluster
    #[arg(long)]
    cluster: bool,
    /// The file with the password
    ///
    /// Default: the password is in REDIS_PASSWORD, or there is none.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The prefix of rules' names
    ///
    /// The service's store has the same one.
    #[arg(long, default_value = "ratelimit")]
    prefix: String,
    /// Whose part of a limit per client is meant
    ///
    /// Each client has such a limit for itself: write the id of a Redisson instance, or what a
    /// service gives to `client_id`. `diagnose` lists those that have keys. Other limits need none.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
}

impl RedisOptions {
    /// Opens the store. Nothing is sent yet.
    pub(crate) fn open(&self) -> Result<RedisStore, Stop> {
        let password = match &self.password_file {
            Some(file) => Some(read(file)?),
            None => env::var("REDIS_PASSWORD").ok(),
        };
        let addresses = self.redis.iter().flat_map(|it| each(it));
        let addresses = addresses.map(|it| with_password(&it, password.as_deref()));
        let mut builder = match (&*addresses.collect::<Result<Vec<_>, _>>()?, self.cluster) {
            (all, true) => RedisStore::cluster(all),
            ([one], false) => RedisStore::builder(one),
            _ => return Err(Stop::usage("several addresses are for `--cluster`")),
        };
        if let Some(client) = &self.client {
            builder = builder.client_id(client);
        }
        let builder = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE);
        Ok(builder.prefix(&self.prefix).summary(None).build()?)
    }
}

/// Returns each of the addresses that commas separate. A password may have some, too.
fn each(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in text.split(',') {
        match all.last_mut() {
            Some(last) if !part.contains("://") => *last = format!("{last},{part}"),
            _ => all.push(part.to_owned()),
        }
    }
    all
}

fn read(file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file).map_err(in_file(file))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn with_password(address: &str, password: Option<&str>) -> Result<String, Stop> {
    let Some(password) = password else {
        return Ok(address.to_owned());
    };
    let url = Url::parse(address).ok().and_then(|mut url| {
        url.set_password(Some(password)).ok()?;
        Some(url.into())
    });
    // The address itself is not shown: it may hold another password.
    let refused = "no password can be put into this address of Redis: write one that has it";
    url.ok_or_else(|| Stop::usage(refused))
}

/// Which limiter: by its name in Redis, or by rule and key.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// Its name in Redis, as in `orders` or `ratelimit:{ann}:login`
    ///
    /// It is the name by which Java calls it, or that which a rule and a key make: `ratelimit
    /// explain` prints those. Or write `--rule` and `--key`.
    #[arg(required_unless_present = "rule", conflicts_with_all = ["rule", "key", "secret"])]
    name: Option<String>,
    /// The rule that made it, in place of its name
    ///
    /// With tiers `<rule>.<tier>`, as in `api.free`.
    #[arg(long, requires = "key")]
    rule: Option<String>,
    /// The rule's key, as in `ann` or an address
    ///
    /// Repeat it for each component of a key that has several, in their order. An IPv6 address
    /// counts as its network, as in `2001:db8:1:200::/56`.
    #[arg(long, value_name = "TEXT")]
    key: Vec<String>,
    /// The secret of digested keys, as in `k1=secret.txt`
    ///
    /// Its id, and the file that holds it. Only for a rule whose key has a `digest`.
    #[arg(long, value_name = "ID=FILE")]
    secret: Option<String>,
}

impl Which {
    /// Returns the limiter's name in Redis.
    pub(crate) fn name(&self, store: &RedisStore) -> Result<String, Stop> {
        let Some(rule) = &self.rule else {
            return Ok(self.name.clone().unwrap_or_default());
        };
        // A layer with a rule of this name encodes the key as any service does.
        let (key, limit) = (GivenKey(self.key.clone()), Limit::per_second(1));
        let rule = match &self.secret {
            Some(secret) => Rule::new(rule, limit, key.digest(&secret_of(secret)?)),
            None => Rule::new(rule, limit, key),
        };
        let layer = RateLimitLayer::builder(store).otherwise(rule).build()?;
        let (request, ()) = Request::new(()).into_parts();
        match &*layer.limiters_of(&request) {
            [limiter, ..] => Ok(limiter.name().to_owned()),
            [] => Err(Stop::usage("the key is empty")),
        }
    }
}

/// The key of every request.
#[derive(Clone, Debug)]
struct GivenKey(Vec<String>);

impl KeyExtractor for GivenKey {
    fn extract(&self, _: &Parts, key: &mut Key) -> Result<(), NoKey> {
        self.0.iter().for_each(|component| key.push(component));
        Ok(())
    }
}

fn secret_of(given: &str) -> Result<Secret, Stop> {
    let refused = || Stop::usage("write a secret as its id and its file, as in `k1=secret.txt`");
    let (id, file) = given.split_once('=').ok_or_else(refused)?;
    Ok(Secret::new(id, read(Path::new(file))?)?)
}
