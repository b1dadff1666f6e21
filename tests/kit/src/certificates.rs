//! An authority of the tests' own, and what it issues.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use tower_ratelimit::RedisStoreBuilder;

use crate::server::Tls;

/// Who the tests' servers are: what stands in their addresses
pub const HERE: &[&str] = &["127.0.0.1", "localhost"];

/// From the first year to the end of the last
type Years = (i32, i32);

const NOW: Years = (2000, 2100);

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = params(&[], NOW);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// For a server or a client, or one that is both to others of its kind
    pub fn issue(&self, names: &[&str]) -> Tls {
        self.issue_for(names, NOW)
    }

    pub fn issue_for(&self, names: &[&str], years: Years) -> Tls {
        let mut params = params(names, years);
        params.distinguished_name.push(DnType::CommonName, "tests");
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Tls {
            authority: self.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// Returns a store that trusts this authority
    pub fn believed(&self, store: RedisStoreBuilder) -> RedisStoreBuilder {
        store.authorities(self.pem())
    }

    /// The same for a store that presents a certificate
    pub fn believed_by(&self, client: &Tls, store: RedisStoreBuilder) -> RedisStoreBuilder {
        let Tls {
            certificate, key, ..
        } = client;
        self.believed(store).client(&**certificate, &**key)
    }
}

fn params(names: &[&str], (first, last): Years) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    params.not_before = date_time_ymd(first, 1, 1);
    params.not_after = date_time_ymd(last, 12, 31);
    params
}
