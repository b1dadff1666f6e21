//! TLS: which certificates are trusted and shown, and what to do when one is refused.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind as RedisKind, RedisError, TlsCertificates};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::error::{ConfigError, Error, ErrorKind};

/// Installs a provider of cryptography if the process has chosen none: redis-rs uses the process'
/// own, and rustls panics if there is none, or several to choose from.
pub(crate) fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only if another provider was installed meanwhile.
        let _ = ring::default_provider().install_default();
    }
}

pub(crate) fn is_wanted(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Returns at once what would fail each connection: an invalid certificate, or a key of another
/// one.
pub(crate) fn check(certificates: &TlsCertificates) -> Result<(), ConfigError> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &certificates.root_cert {
        for root in read(pem).ok_or(UNREADABLE_ROOT)? {
            roots.add(root).map_err(|_| UNREADABLE_ROOT)?;
        }
    }
    let Some(own) = &certificates.client_tls else {
        return Ok(());
    };
    let chain = read(&own.client_cert).ok_or(ConfigError::Certificates(
        "the certificate of this process is not a certificate in PEM",
    ))?;
    // Not the parser's own message: it may repeat a line of the key.
    let key = PrivateKeyDer::from_pem_slice(&own.client_key).map_err(|_| {
        ConfigError::Certificates("the key of this process is not a private key in PEM")
    })?;
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            config
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key)
        })
        .map_err(|_| {
            ConfigError::Certificates("the key of this process does not match its certificate")
        })?;
    Ok(())
}

const UNREADABLE_ROOT: ConfigError =
    ConfigError::Certificates("the certificate of the authority is not a certificate in PEM");

pub(crate) const NO_TLS: ConfigError =
    ConfigError::Certificates("TLS needs an address with `rediss://`");

fn read(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty())
}

/// Returns the same address, with certificates.
pub(crate) fn equip(
    info: &ConnectionInfo,
    certificates: TlsCertificates,
) -> Result<ConnectionInfo, ConfigError> {
    let client = redis::Client::build_with_tls(info.clone(), certificates).map_err(|_| NO_TLS)?;
    Ok(client.get_connection_info().clone())
}

/// Returns what an error says about certificates, and what to do then; `None` if it is about
/// something else.
///
/// By rustls' own messages: from a Cluster redis-rs passes on nothing else.
pub(crate) fn refusal(error: &RedisError) -> Option<Error> {
    let by_tls = matches!(error.kind(), RedisKind::Io | RedisKind::InvalidClientConfig);
    let text = by_tls.then(|| error.to_string())?;
    let (_, remedy) = REMEDIES
        .iter()
        .find(|(message, _)| text.contains(message))?;
    Some(
        Error::new(ErrorKind::Tls)
            .detail(*remedy)
            .caused_by(error.clone()),
    )
}

/// Messages of rustls, or from the other side, each with its remedy; the first match counts.
const REMEDIES: &[(&str, &str)] = &[
    (
        "invalid peer certificate: UnknownIssuer",
        "Redis' certificate comes from no authority that is trusted here: give \
         `RedisStoreBuilder::certificates` the authority's",
    ),
    (
        "invalid peer certificate: certificate expired",
        "Redis' certificate has expired: renew it there, and check this machine's clock",
    ),
    (
        "invalid peer certificate: certificate not valid yet",
        "Redis' certificate is not valid yet: check this machine's clock",
    ),
    (
        "invalid peer certificate: certificate not valid for name",
        "Redis' certificate is not for the host in the address: use a name that it has, or have it \
         issued for this one",
    ),
    (
        "invalid peer certificate",
        "Redis' certificate cannot be used: have it issued anew",
    ),
    (
        "received fatal alert: CertificateRequired",
        "Redis wants a certificate of this process: give one to `RedisStoreBuilder::certificates`",
    ),
    (
        "received fatal alert: CertificateExpired",
        "the certificate that this process shows has expired: renew it",
    ),
    (
        "received fatal alert: UnknownCA",
        "Redis does not know the authority of the certificate that this process shows: put it into \
         `tls-ca-cert-file` there",
    ),
    (
        "received fatal alert: BadCertificate",
        "Redis refuses the certificate that this process shows: have it issued anew, for clients",
    ),
    (
        "received fatal alert: UnsupportedCertificate",
        "Redis refuses the certificate that this process shows: have it issued anew, for clients",
    ),
    (
        "received fatal alert: CertificateUnknown",
        "Redis refuses the certificate that this process shows: have it issued anew, for clients",
    ),
    (
        "received fatal alert: HandshakeFailure",
        "Redis refuses the handshake: it may want a certificate of this process \
         (`RedisStoreBuilder::certificates`), or has no cipher in common with it",
    ),
    (
        "received fatal alert: ProtocolVersion",
        "Redis speaks neither TLS 1.2 nor 1.3: switch one on in `tls-protocols` there",
    ),
    (
        "peer is incompatible",
        "the TLS settings of Redis have nothing in common with this process: switch TLS 1.2 or \
         1.3 on in `tls-protocols` there",
    ),
    (
        "received corrupt message",
        "the server does not speak TLS: use the port of `tls-port`, or `redis://` without it",
    ),
    (
        "tls-rustls-insecure",
        "`#insecure` trusts every server, and is not built in: give \
         `RedisStoreBuilder::certificates` the authority's certificate",
    ),
    (
        "invalid dns name",
        "the host in the address is no name that a certificate can have",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn root(pem: &[u8]) -> TlsCertificates {
        TlsCertificates {
            client_tls: None,
            root_cert: Some(pem.to_vec()),
        }
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        // Redis-rs takes the first two for a list without authorities, and would then trust none.
        let torn = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for pem in [&b""[..], b"nothing", torn] {
            assert_eq!(check(&root(pem)), Err(UNREADABLE_ROOT));
        }
        let none = TlsCertificates {
            client_tls: None,
            root_cert: None,
        };
        assert_eq!(check(&none), Ok(()));
    }

    #[test]
    fn there_is_a_provider_once_it_is_needed() {
        choose_provider();
        assert!(CryptoProvider::get_default().is_some());
    }

    #[test]
    fn a_server_message_is_not_taken_for_tls() {
        let said = RedisError::from((
            RedisKind::Client,
            "said",
            "invalid peer certificate: UnknownIssuer".to_owned(),
        ));
        assert!(refusal(&said).is_none());
        let met = RedisError::from((
            RedisKind::Io,
            "met",
            "invalid peer certificate: UnknownIssuer".to_owned(),
        ));
        let refusal = refusal(&met).expect("a refusal");
        assert_eq!(refusal.kind(), ErrorKind::Tls);
        assert!(
            refusal
                .to_string()
                .contains("RedisStoreBuilder::certificates")
        );
    }
}
