package node

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/stack/tlshost"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// TLSFlags make the TCP connections of a node TLS connections.
type TLSFlags struct {
	TLS     string `group:"node" name:"tls" placeholder:"CERT,KEY" help:"iWARP over TLS 1.3, with this node's certificate chain and private key (PEM files; only the owner may read KEY). For peers that cannot do --secure, and have TLS in front of their iWARP port, such as stunnel. TCP connections of the node itself are TLS too. It has no RoCE and no raw packets: use --transport iwarp. A node that only connects needs no certificate unless its peer asks for one: --tls-ca alone also turns TLS on."`
	TLSCA   string `group:"node" name:"tls-ca" placeholder:"FILE" help:"With TLS: the certificates of the authorities that sign those of peers (PEM file), or system for those that this machine trusts. A peer that connects has to show a certificate of theirs. Default: peers that connect need none, and servers are verified as with system."`
	TLSName string `group:"node" name:"tls-name" placeholder:"NAME" help:"With TLS: the name in the certificates of servers. Default: the IP address of the server has to be in its certificate."`
}

// systemCA stands for the authorities that this machine trusts.
const systemCA = "system"

// enabled reports whether the node has TLS.
func (f *TLSFlags) enabled() bool { return f.TLS != "" || f.TLSCA != "" }

// Absolute returns the flags with absolute paths, for a process with another working directory.
func (f *TLSFlags) Absolute() (abs TLSFlags, err error) {
	abs = *f
	files := strings.Split(f.TLS, ",")
	for i := range files {
		if files[i] != "" {
			var e error
			files[i], e = filepath.Abs(files[i])
			err = cmp.Or(err, e)
		}
	}
	abs.TLS = strings.Join(files, ",")
	if f.TLSCA != "" && f.TLSCA != systemCA {
		var e error
		abs.TLSCA, e = filepath.Abs(f.TLSCA)
		err = cmp.Or(err, e)
	}
	return abs, err
}

// checkTLS returns an error if flags contradict --tls.
func (f *Flags) checkTLS() error {
	switch {
	case !f.enabled() && f.TLSName != "":
		return cli.Usagef("--tls-name: only with --tls or --tls-ca")
	case f.enabled() && f.Secure != "":
		return cli.Usagef("--secure: it encrypts everything: leave out --tls and --tls-ca, or --secure")
	}
	return nil
}

// config reads the files.
func (f *TLSFlags) config() (*tls.Config, error) {
	c := &tls.Config{ServerName: f.TLSName}
	if f.TLS != "" {
		certFile, keyFile, ok := strings.Cut(f.TLS, ",")
		if !ok {
			return nil, cli.Usagef("--tls %s: must be two files, CERT,KEY", f.TLS)
		}
		pair, err := ReadKeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("--tls: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	switch f.TLSCA {
	case "":
		return c, nil
	case systemCA:
		pool, err := x509.SystemCertPool()
		if err != nil {
			return nil, fmt.Errorf("--tls-ca %s: %w", systemCA, err)
		}
		c.RootCAs = pool
	default:
		text, err := os.ReadFile(f.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--tls-ca %s: no certificate in PEM", f.TLSCA)
		}
	}
	c.ClientCAs, c.ClientAuth = c.RootCAs, tls.RequireAndVerifyClientCert
	return c, nil
}

// ReadKeyPair reads a certificate chain and its private key, PEM files, of which only the owner may
// read the key.
func ReadKeyPair(certFile, keyFile string) (pair tls.Certificate, err error) {
	chain, err := os.ReadFile(certFile)
	if err != nil {
		return pair, err
	}
	key, err := ReadSecret(keyFile)
	if err != nil {
		return pair, err
	}
	if pair, err = tls.X509KeyPair(chain, []byte(key)); err != nil {
		err = fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	return pair, err
}

// openTLS makes the streams of n.Host TLS connections.
func (f *Flags) openTLS(n *Node) error {
	if !f.enabled() || f.Describe {
		return nil
	}
	c, err := f.config()
	if err != nil {
		return errors.Join(err, n.Host.Close())
	}
	cfg := &tlshost.Config{TLS: c, Logger: n.Log}
	if f.allowsNames() {
		own := ""
		if len(c.Certificates) > 0 {
			own = tlshost.KeyHash(c.Certificates[0].Leaf)
		}
		// The node may reach itself. Its addresses do not tell, as other programs have them too.
		cfg.Admit = func(peer netip.Addr, cert *x509.Certificate) bool {
			return cert != nil && tlshost.KeyHash(cert) == own ||
				slices.ContainsFunc(f.Allow, func(a Allowed) bool { return a.admits(peer, cert) })
		}
	}
	if n.TLS, err = tlshost.New(n.Host, cfg); err != nil {
		return err
	}
	n.Host = n.TLS
	return nil
}

// allowsNames reports whether --allow has names or keys.
func (f *Flags) allowsNames() bool {
	return slices.ContainsFunc(f.Allow, func(a Allowed) bool { return a.peer != "" })
}

// admits reports whether --allow names the peer of a TLS connection.
func (a *Allowed) admits(peer netip.Addr, cert *x509.Certificate) bool {
	if a.peer == "" {
		return a.Contains(peer)
	}
	if cert == nil {
		return false
	}
	if a.key {
		return tlshost.KeyHash(cert) == a.peer
	}
	return slices.ContainsFunc(cert.DNSNames, func(name string) bool { return strings.EqualFold(name, a.peer) })
}
