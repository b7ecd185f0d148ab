package rsocket_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// tlsConfigs returns TLS configurations of a server and its client.
func tlsConfigs(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	ok(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(crand.Reader, c, c, key.Public(), key)
	ok(t, err)
	parsed, err := x509.ParseCertificate(der)
	ok(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{RootCAs: pool, ServerName: "10.0.0.1"}
}

// TLS runs over rsockets: data in both directions at the same time, and the close of each half.
func TestTLS(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		own, peers := tlsConfigs(t)
		a, b := pair(t, m, &rsocket.Config{Transport: transport})
		sides := []*tls.Conn{tls.Client(a, peers), tls.Server(b, own)}
		data := [][]byte{random(1_000_000), random(777_777)}
		results := make(chan error)
		for i, c := range sides {
			go func() {
				written := make(chan error, 1)
				go func() {
					_, err := c.Write(data[i])
					written <- errors.Join(err, c.CloseWrite())
				}()
				got, err := io.ReadAll(c)
				if err = errors.Join(err, <-written); err == nil && !bytes.Equal(got, data[1-i]) {
					err = fmt.Errorf("%d bytes of %d, or different bytes", len(got), len(data[1-i]))
				}
				results <- err
			}()
		}
		for range sides {
			ok(t, <-results)
		}
	})
}

// A web server with TLS, which negotiates HTTP/2. http.Server and http.Transport run unchanged.
func TestHTTPS(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rsocket.Config{Transport: transport}
		own, peers := tlsConfigs(t)
		l, err := rsocket.Listen(to, netip.AddrPortFrom(at, 0).String(), cfg)
		ok(t, err)
		echo := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }
		srv := &http.Server{TLSConfig: own, Handler: http.HandlerFunc(echo)}
		go srv.ServeTLS(l, "", "")
		defer srv.Close()
		tr := &http.Transport{TLSClientConfig: peers, ForceAttemptHTTP2: true,
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return rsocket.Dial(ctx, from, addr, cfg) }}
		defer tr.CloseIdleConnections()
		data := random(100_000)
		answers := make(chan error)
		for range 8 {
			go func() { answers <- post(tr, "https://"+l.Addr().String()+"/", data, 2) }()
		}
		for range 8 {
			ok(t, <-answers)
		}
	})
}

// post posts bytes to an echo server and compares the answer.
func post(tr http.RoundTripper, url string, data []byte, version int) error {
	r, err := (&http.Client{Transport: tr}).Post(url, "", bytes.NewReader(data))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	got, err := io.ReadAll(r.Body)
	if err == nil && (!bytes.Equal(got, data) || r.ProtoMajor != version) {
		err = fmt.Errorf("%s: %d bytes of %d, or different bytes", r.Proto, len(got), len(data))
	}
	return err
}
