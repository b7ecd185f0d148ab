package wireguard_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/wireguard"
)

// Keys of these tests only.
const (
	private1 = "QMOqHGoKcTBqKhZmZvVqvTqA4Ov5kbBkIyb7BJHNGVk="
	public2  = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	public3  = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0="
)

const configuration = `# A comment.
[Interface]
PrivateKey = ` + private1 + `
ListenPort = 7777
Address = 10.7.0.1/24, fd07::1/64
MTU = 4200

[Peer]
# Name = laptop
PublicKey = ` + public2 + `
PresharedKey = ` + private1 + ` # both have it
Endpoint = [2001:db8::2]:51820
AllowedIPs = 10.7.0.2/32, fd07::2
AllowedIPs = 192.168.4.0/24
PersistentKeepalive = 25

[peer]
publickey=` + public3 + `
`

func TestParseFile(t *testing.T) {
	f := must(wireguard.ParseFile(configuration))(t)
	if f.PrivateKey.Encode() != private1 || f.Port != 7777 || f.MTU != 4200 || fmt.Sprint(f.Addrs) != "[10.7.0.1/24 fd07::1/64]" ||
		len(f.Peers) != 2 {
		t.Fatalf("%+v", f)
	}
	p := f.Peers[0]
	if p.Name != "laptop" || p.PublicKey.String() != public2 || p.PresharedKey.Encode() != private1 || p.Endpoint != "[2001:db8::2]:51820" ||
		fmt.Sprint(p.AllowedIPs) != "[10.7.0.2/32 fd07::2/128 192.168.4.0/24]" || p.Keepalive != 25*time.Second {
		t.Errorf("%+v", p)
	}
	if p := f.Peers[1]; p.PublicKey.String() != public3 || p.Name != "" {
		t.Errorf("%+v", p)
	}
	if f := must(wireguard.ParseFile(private1 + "\n"))(t); f.PrivateKey.Encode() != private1 {
		t.Error("a file with a key only")
	}
}

// TestParseFileErrors: an error names the line and what is wrong, and shows no secret key.
func TestParseFileErrors(t *testing.T) {
	const head = "[Interface]\nPrivateKey = " + private1 + "\n"
	for text, want := range map[string]string{
		"":                             "not a key",
		"x":                            "not a key",
		private1 + private1:            "not a key",
		"[Interface]\n":                "no PrivateKey",
		"[Interface]\n" + private1[1:]: "line 2: must be a line",
		"[Interface]\nPrivateKey = " + private1[1:]: "line 2: PrivateKey: not a key",
		"[Wire]\n":                                    "line 1",
		head + "ListenPort = 70000":                   "line 3: ListenPort = 70000",
		head + "PostUp = rm":                          "line 3: postup is of wg-quick",
		head + "Colour = red":                         "line 3: \"colour\" is no key",
		head + "[Peer]\nAllowedIPs = 10.0.0.1/32":     "peer 1 of the file has no PublicKey",
		head + "[Peer]\nPublicKey = x":                "line 4: PublicKey: not a public key, but 1 characters",
		head + "[Peer]\nPresharedKey = x" + private1:  "line 4: PresharedKey: not a key",
		head + "[Peer]\nEndpoint = 192.0.2.1":         "line 4: endpoint",
		head + "[Peer]\nAllowedIPs = 10.0.0/8":        "line 4: AllowedIPs",
		head + "[Peer]\nPersistentKeepalive = always": "line 4: PersistentKeepalive",
		head + "[Peer]\n# Name = a b":                 "line 4: \"a b\" is not a peer's name",
		head + "[Peer]\n# Name = 10.7.0.2":            "line 4: 10.7.0.2 is an address",
		head + "[Peer]\n# Name = a\n# Name = b":       "line 5: the peer has the name a already",
		// It looks as if it were of a peer below, or of one that has been commented out.
		head + "[Peer]\nPublicKey = " + public2 + "\n# Name = bob": "line 5: a peer's name must be between",
	} {
		_, err := wireguard.ParseFile(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), private1[1:40]) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestParsePeer(t *testing.T) {
	for text, want := range map[string]string{
		public2:                               " " + public2 + "  0s",
		public2 + "@host:7":                   " " + public2 + " host:7 25s",
		"bob=" + public2 + "@192.0.2.1":       "bob " + public2 + " 192.0.2.1:51820 25s",
		"bob=" + public2:                      "bob " + public2 + "  0s",
		public2 + "@[2001:db8::1]:7":          " " + public2 + " [2001:db8::1]:7 25s",
		public2 + "@2001:db8::1":              " " + public2 + " [2001:db8::1]:51820 25s",
		public2 + "@host:0":                   "error",
		public2[1:]:                           "error",
		"a b=" + public2:                      "error",
		"":                                    "error",
		strings.Repeat("A", 43) + "=":         "error",
		"bob=" + public2 + "@host:port:seven": "error",
	} {
		got := "error"
		if p, err := wireguard.ParsePeer(text); err == nil {
			got = fmt.Sprint(p.Name, " ", p.PublicKey, " ", p.Endpoint, " ", p.Keepalive)
		}
		if got != want && !(want == "error" && strings.Contains(got, "port:seven")) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestSecretKey: no way to print a key shows it.
func TestSecretKey(t *testing.T) {
	k := must(wireguard.ParseSecretKey(private1))(t)
	cfg := wireguard.Config{PrivateKey: k, Peers: []wireguard.PeerConfig{{PresharedKey: k}}}
	var b strings.Builder
	log := slog.New(slog.NewJSONHandler(&b, nil))
	log.Info("key", "key", k, "config", cfg, "pointer", &cfg)
	slog.New(slog.NewTextHandler(&b, nil)).Info("key", "key", k, "config", cfg, "pointer", &cfg)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		fmt.Fprintf(&b, verb+" "+verb+" "+verb+"\n", k, cfg, &k)
	}
	for _, form := range []string{private1[:8], fmt.Sprintf("%x", k[:4:4]), fmt.Sprint([]byte(k[:3]))[1:8], fmt.Sprintf("%X", k[:4:4])} {
		if strings.Contains(b.String(), form) {
			t.Errorf("the output has %s:\n%s", form, b.String())
		}
	}
}

// TestAddr: addresses are those of the key, forever: nodes of other versions know each other by
// them.
func TestAddr(t *testing.T) {
	k := must(wireguard.ParsePublicKey(public2))(t)
	if got := fmt.Sprint(k.Addr(), k.LinkLocal(), k.MAC()); got !=
		"fd73:6f66:7472:3120:dbca:87e7:e70d:88b fe80::fcfa:cbff:fe40:6d4c fe:fa:cb:40:6d:4c" || !wireguard.Network.Contains(k.Addr()) {
		t.Error(got)
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add(configuration)
	f.Add(private1)
	f.Fuzz(func(t *testing.T, text string) {
		file, err := wireguard.ParseFile(text)
		if err != nil {
			if strings.Contains(err.Error(), private1) {
				t.Error("the error shows a key")
			}
			return
		}
		for _, p := range file.Peers {
			if p.PublicKey == (wireguard.PublicKey{}) {
				t.Error("a peer without a key")
			}
		}
	})
}
