//! Certificates for tests over TLS, made anew for each; it opens no connection.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A CA and what it signed, in files of their own.
pub(crate) struct Pki {
    directory: PathBuf,
}

impl Pki {
    pub(crate) fn new(name: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let pki = Self { directory };
        let mut ca = CertificateParams::new(vec![]).unwrap();
        ca.distinguished_name.push(DnType::CommonName, name);
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        pki.write("ca.pem", &issuer.pem());
        for of in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let signed = params.signed_by(&key, &issuer).unwrap();
            pki.write(&format!("{of}.pem"), &signed.pem());
            pki.write(&format!("{of}.key"), &key.serialize_pem());
        }
        pki
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.directory.join(file), text).unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
