package stacktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// Authority signs certificates for tests of TLS.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	PEM  []byte // its own certificate
}

// NewAuthority makes an authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{}
	template := template("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a.key = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must(x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key))(t)
	a.cert = must(x509.ParseCertificate(der))(t)
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

// Pool returns a pool with the authority's certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Issue returns a certificate and its key in PEM, for a host with a name and addresses.
func (a *Authority) Issue(t testing.TB, name string, addrs ...string) (cert, key []byte) {
	t.Helper()
	template := template(name)
	template.DNSNames = []string{name}
	for _, addr := range addrs {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(addr))
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	private := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must(x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(private))(t)})
}

// Config returns a configuration for both roles of a host, in which each side verifies the other.
func (a *Authority) Config(t testing.TB, name string, addrs ...string) *tls.Config {
	t.Helper()
	return &tls.Config{
		Certificates: []tls.Certificate{must(tls.X509KeyPair(a.Issue(t, name, addrs...)))(t)},
		RootCAs:      a.Pool(), ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
}
