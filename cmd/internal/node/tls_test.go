package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/tlshost"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// tlsFiles writes an authority's certificate, and a certificate and key of a host with a name and
// an address.
func tlsFiles(t *testing.T, ca *stacktest.Authority, name, addr string) TLSFlags {
	t.Helper()
	dir := t.TempDir()
	f := TLSFlags{TLS: filepath.Join(dir, "cert") + "," + filepath.Join(dir, "key"), TLSCA: filepath.Join(dir, "ca")}
	cert, key := ca.Issue(t, name, addr)
	for file, text := range map[string][]byte{"cert": cert, "key": key, "ca": ca.PEM} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestTLSAllowed: --allow decides by the address, the name or the key of a verified certificate.
func TestTLSAllowed(t *testing.T) {
	ca := stacktest.NewAuthority(t)
	client := tlsFiles(t, ca, "client.test", "10.0.0.2")
	c, err := client.config()
	if err != nil {
		t.Fatal(err)
	}
	for allow, allowed := range map[string]bool{
		"client.test": true, "10.0.0.0/24": true, tlshost.KeyHash(c.Certificates[0].Leaf): true, "10.0.0.9,client.test": true,
		"other.test": false, "10.0.0.9": false, "10.0.0.9,other.test": false,
	} {
		t.Run(strings.ReplaceAll(allow, ",", " or "), func(t *testing.T) {
			lan := new(pipe.Switch)
			open := func(addr string, f Flags) *Node {
				f.Addr = []CIDR{{netip.MustParsePrefix(addr)}}
				n, err := f.Open(&cli.Env{Stderr: io.Discard, LAN: lan})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := n.Close(); err != nil {
						t.Error(err)
					}
				})
				return n
			}
			f := Flags{TLSFlags: tlsFiles(t, ca, "server.test", "10.0.0.1")}
			for text := range strings.SplitSeq(allow, ",") {
				var a Allowed
				if err := a.UnmarshalText([]byte(text)); err != nil {
					t.Fatal(err)
				}
				f.Allow = append(f.Allow, a)
			}
			a, b := open("10.0.0.1/24", f), open("10.0.0.2/24", Flags{TLSFlags: client})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			cfg := &rdmacm.Config{Transport: verbs.IWARP}
			l, err := rdmacm.Listen(a.Dev, ":7471", cfg)
			if err != nil {
				t.Fatal(err)
			}
			accepted := make(chan *rdmacm.Conn, 1)
			go func() {
				c, _ := l.Accept(ctx)
				accepted <- c
			}()
			c, err := rdmacm.Dial(ctx, b.Dev, "10.0.0.1:7471", cfg)
			if (err == nil) != allowed {
				t.Errorf("dial: %v", err)
			}
			if err == nil {
				err = errors.Join(c.Close(), (<-accepted).Close())
			} else {
				err = nil
			}
			if err = errors.Join(err, l.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTLSFlags: contradicting flags and unusable files are errors that name the flag.
func TestTLSFlags(t *testing.T) {
	ca := stacktest.NewAuthority(t)
	good := tlsFiles(t, ca, "a.test", "10.0.0.1")
	cert, key, _ := strings.Cut(good.TLS, ",")
	open := filepath.Join(t.TempDir(), "key")
	text, err := os.ReadFile(key)
	if err == nil {
		err = errors.Join(os.WriteFile(open, text, 0o600), os.Chmod(open, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	for want, f := range map[string]Flags{
		"--tls-name: only with":          {TLSFlags: TLSFlags{TLSName: "a"}},
		"--secure":                       {TLSFlags: good, Secure: key},
		"must be two files":              {TLSFlags: TLSFlags{TLS: cert}},
		"use chmod 600":                  {TLSFlags: TLSFlags{TLS: cert + "," + open}},
		"--tls: open":                    {TLSFlags: TLSFlags{TLS: "/nonexistent," + key}},
		"no certificate in PEM":          {TLSFlags: TLSFlags{TLSCA: key}},
		"--tls-ca: open":                 {TLSFlags: TLSFlags{TLSCA: "/nonexistent"}},
		"PEM inputs may have":            {TLSFlags: TLSFlags{TLS: key + "," + cert}},
		"only with --secure or --tls do": {Allow: []Allowed{{peer: "a.test"}}},
	} {
		var log bytes.Buffer
		f.Addr = []CIDR{{netip.MustParsePrefix("10.0.0.1/24")}}
		n, err := f.Open(&cli.Env{Stderr: &log, LAN: new(pipe.Switch)})
		if err == nil {
			_ = n.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if abs, err := (&TLSFlags{TLS: "c,k", TLSCA: systemCA}).Absolute(); err != nil || !filepath.IsAbs(abs.TLS) || abs.TLSCA != systemCA {
		t.Errorf("absolute: %+v, %v", abs, err)
	}
}
