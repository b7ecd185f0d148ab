package proxy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// program is the command line with this package's command alone.
var program = clitest.Program(func() any {
	return new(struct {
		Proxy Command `cmd:""`
	})
})

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start starts a proxy, and returns it with its listening address.
func start(t *testing.T, lan *pipe.Switch, args string) (p *clitest.Command, addr string) {
	t.Helper()
	p = program.Start(t, lan, "proxy "+args)
	p.Await(t, &p.Out, "\n")
	m := regexp.MustCompile(`from [a-z0-9+]+:(\S+) to `).FindStringSubmatch(p.Out.String())
	if m == nil {
		t.Fatalf("stdout: %q", &p.Out)
	}
	return p, m[1]
}

// stop interrupts a proxy.
func stop(t *testing.T, ps ...*clitest.Command) {
	t.Helper()
	for _, p := range ps {
		p.Stop()
		if code := p.Wait(t); code != cli.ExitOK {
			t.Errorf("exit code %d: %s", code, &p.Err)
		}
	}
}

// echo starts a TCP server that echoes data and ends with its client. It returns the address.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// device returns the device of a node of the test.
func device(t *testing.T, lan *pipe.Switch, addr string) *verbs.Device {
	t.Helper()
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
	ok(t, err)
	dev, err := rdmatransport.Open(host, nil)
	ok(t, err)
	t.Cleanup(func() {
		dev.Close()
		host.Close()
	})
	return dev
}

// bounce sends bytes to an echo server, closes its half, and compares the received bytes.
func bounce(c net.Conn, n int) error {
	defer c.Close()
	data := make([]byte, n)
	_, _ = rand.Read(data)
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(c, bytes.NewReader(data))
		sent <- errors.Join(err, c.(interface{ CloseWrite() error }).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err = errors.Join(err, <-sent); err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("%d bytes of %d, or other ones", len(got), len(data))
	}
	return err
}

// TestChain: TCP to RoCEv2, RoCEv2 to iWARP, iWARP to TCP, with many connections at once and both
// halves of each.
func TestChain(t *testing.T) {
	lan := new(pipe.Switch)
	last, _ := start(t, lan, "--addr 10.0.0.3/24 iwarp:7473 tcp:"+echo(t))
	middle, _ := start(t, lan, "--addr 10.0.0.2/24 rocev2:7472 iwarp:10.0.0.3:7473 --metrics 127.0.0.1:0 --log-level info")
	first, addr := start(t, lan, "--addr 10.0.0.1/24 tcp:127.0.0.1:0 rocev2:10.0.0.2:7472")
	const conns, size = 12, 700_000
	results := make(chan error)
	for range conns {
		go func() {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				err = bounce(c, size)
			}
			results <- err
		}()
	}
	for range conns {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	metrics := scrape(t, middle)
	for _, want := range []string{
		fmt.Sprintf("softrnic_proxy_accepted_connections_total %d\n", conns),
		"softrnic_proxy_failed_connections_total 0\n",
		fmt.Sprintf("softrnic_proxy_bytes_total{direction=%q} %v\n", "to", float64(conns*size)),
		fmt.Sprintf("softrnic_proxy_bytes_total{direction=%q} %v\n", "back", float64(conns*size)),
		"softrnic_rdma_sends_total",
	} {
		if !strings.Contains(metrics, want) && !strings.Contains(metrics, strings.TrimSuffix(want, "\n")+"{") {
			t.Errorf("no %q in the metrics:\n%s", want, metrics)
		}
	}
	stop(t, first, middle, last)
}

// scrape returns a command's metrics.
func scrape(t *testing.T, p *clitest.Command) string {
	t.Helper()
	m := regexp.MustCompile(`http://\S+/metrics`).FindString(p.Err.String())
	r, err := http.Get(m)
	ok(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	ok(t, err)
	return string(b)
}

// certificate creates a self-signed certificate for a name and returns its files.
func certificate(t *testing.T, name string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	ok(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	ok(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ok(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	ok(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	parsed, err := x509.ParseCertificate(der)
	ok(t, err)
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return cert, key, pool
}

// TestTLS: plain TCP becomes TLS over RoCEv2, which becomes plain TCP again. A client without a
// certificate is refused.
func TestTLS(t *testing.T) {
	lan := new(pipe.Switch)
	cert, key, pool := certificate(t, "far.example")
	clientCert, clientKey, _ := certificate(t, "near.example")
	last, _ := start(t, lan, fmt.Sprintf("--addr 10.0.0.2/24 rocev2+tls:7472 tcp:%s --cert %s --key %s --client-ca %s", echo(t), cert,
		key, clientCert))
	first, addr := start(t, lan,
		fmt.Sprintf("--addr 10.0.0.1/24 tcp:127.0.0.1:0 rocev2+tls:10.0.0.2:7472 --ca %s --server-name far.example --cert %s --key %s",
			cert, clientCert, clientKey))
	c, err := net.Dial("tcp", addr)
	ok(t, err)
	ok(t, bounce(c, 300_000))

	dev := device(t, lan, "10.0.0.4/24")
	try := func(cfg *tls.Config) error {
		raw, err := rsocket.Dial(t.Context(), dev, "10.0.0.2:7472", nil)
		ok(t, err)
		return bounce(tls.Client(raw, cfg), 1000)
	}
	own, err := tls.LoadX509KeyPair(clientCert, clientKey)
	ok(t, err)
	ok(t, try(&tls.Config{RootCAs: pool, ServerName: "far.example", Certificates: []tls.Certificate{own}}))
	if err := try(&tls.Config{RootCAs: pool, ServerName: "far.example"}); err == nil {
		t.Error("passed on without a certificate")
	}
	if err := try(&tls.Config{RootCAs: pool, ServerName: "other.example", Certificates: []tls.Certificate{own}}); err == nil {
		t.Error("the certificate is for another name")
	}
	stop(t, first, last)

	ok(t, os.Chmod(key, 0o640))
	for _, sides := range []string{"tcp+tls:127.0.0.1:0 rocev2:10.0.0.2:7", "rocev2:7473 tcp+tls:127.0.0.1:7"} {
		code, _, stderr := program.Run(t.Context(), lan, strings.Fields("proxy --addr 10.0.0.5/24 "+sides+" --cert "+cert+" --key "+key)...)
		if code != cli.ExitFailed || !strings.Contains(stderr, key+": others may read or write it (mode 0640): use chmod 600") {
			t.Errorf("%s: the key that others may read: %d: %s", sides, code, stderr)
		}
	}
}

// TestAbort: if a connection fails on one side, the other side gets an error, not the end of the
// stream.
func TestAbort(t *testing.T) {
	lan := new(pipe.Switch)
	for _, transport := range []string{"rocev2", "iwarp"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ok(t, err)
		p, _ := start(t, lan, fmt.Sprintf("--addr 10.0.0.1/24 %s:7471 tcp:%s", transport, l.Addr()))
		cfg := &rsocket.Config{}
		if transport == "iwarp" {
			cfg.Transport = verbs.IWARP
		}
		dev := device(t, lan, "10.0.0.4/24")
		c, err := rsocket.Dial(t.Context(), dev, "10.0.0.1:7471", cfg)
		ok(t, err)
		far, err := l.Accept()
		ok(t, err)
		_, err = far.Write([]byte("the beginning"))
		ok(t, err)
		b := make([]byte, 13)
		_, err = io.ReadFull(c, b)
		ok(t, err)
		ok(t, far.(*net.TCPConn).SetLinger(0))
		far.Close()
		ok(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		if _, err := c.Read(b); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: Read: %v", transport, err)
		}
		c.Close()
		// The same holds if the proxy is interrupted.
		c, err = rsocket.Dial(t.Context(), dev, "10.0.0.1:7471", cfg)
		ok(t, err)
		far, err = l.Accept()
		ok(t, err)
		_, err = c.Write(b)
		ok(t, err)
		_, err = io.ReadFull(far, b) // now the connection is forwarded
		ok(t, err)
		stop(t, p)
		ok(t, far.SetReadDeadline(time.Now().Add(20*time.Second)))
		if _, err := far.Read(b); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: Read from an interrupted proxy over TCP: %v", transport, err)
		}
		ok(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		if _, err := c.Read(b); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: Read from an interrupted proxy: %v", transport, err)
		}
		c.Close()
		far.Close()
		l.Close()
		lan = new(pipe.Switch)
	}
}

// TestUnreachable: a connection that cannot be forwarded is closed, counted and logged, and the
// proxy continues.
func TestUnreachable(t *testing.T) {
	lan := new(pipe.Switch)
	p, addr := start(t, lan,
		"--addr 10.0.0.1/24 tcp:127.0.0.1:0 rocev2:10.0.0.9:7472 -w 100ms --limit 1 --metrics 127.0.0.1:0 --log-level info")
	for range 2 {
		c, err := net.DialTimeout("tcp", addr, 20*time.Second)
		ok(t, err)
		ok(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Read: %v", err)
		}
		c.Close()
	}
	p.Await(t, &p.Err, "a connection has failed")
	stop(t, p)
}

func TestRefusals(t *testing.T) {
	_, key, _ := certificate(t, "x")
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"tcp:1 tcp:a:2":                                        {cli.ExitUsage, "nothing for RDMA to do"},
		"udp:1 rocev2:a:2":                                     {cli.ExitUsage, "must be tcp, rocev2 or iwarp"},
		"tcp: rocev2:a:2":                                      {cli.ExitUsage, "must be tcp, rocev2 or iwarp"},
		"tcp:1 rocev2:2":                                       {cli.ExitUsage, "the host to connect to is missing"},
		"tcp+tls:1 rocev2:a:2":                                 {cli.ExitUsage, "--cert and --key"},
		"tcp:1 rocev2+tls:a:2 --cert a":                        {cli.ExitUsage, "must be used together"},
		"tcp:1 rocev2:a:2 --cert a --key b":                    {cli.ExitUsage, "neither side has TLS"},
		"tcp:1 rocev2:a:2 --ca a":                              {cli.ExitUsage, "has no TLS"},
		"tcp:1 rocev2:a:2 --client-ca a":                       {cli.ExitUsage, "has no TLS"},
		"tcp:1 rocev2:a:2 -w 0":                                {cli.ExitUsage, "-w 0s"},
		"tcp:1 rocev2:a:2 --limit 0":                           {cli.ExitUsage, "--limit 0"},
		"tcp+tls:1 rocev2:a:2 --cert /no/such --key /no/such":  {cli.ExitFailed, "--cert and --key: open"},
		"tcp:1 rocev2+tls:a:2 --ca " + key:                     {cli.ExitFailed, "no certificate in PEM"},
		"tcp:256.0.0.1:1 rocev2:10.0.0.9:2 --addr 10.0.0.1/24": {cli.ExitFailed, "listen"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		code, _, stderr := program.Run(ctx, new(pipe.Switch), strings.Fields("proxy "+args)...)
		cancel()
		if code != want.code || !strings.Contains(stderr, want.says) {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
}

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }
