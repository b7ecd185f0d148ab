package wireguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// File is the content of a configuration file.
type File struct {
	// Config is complete but for its Logger.
	Config
	// Addrs are the addresses of the node itself (Address of wg-quick).
	Addrs []netip.Prefix
}

// ParseFile parses a private key in base64, as softrnic key and wg genkey write it, or a
// configuration in the format of wg(8), with its sections Interface and Peer:
//
//	[Interface]
//	PrivateKey = …
//	ListenPort = 51820
//	Address = 10.7.0.1/24
//
//	[Peer]
//	# Name = laptop
//	PublicKey = …
//	PresharedKey = …
//	Endpoint = laptop.example.com:51820
//	AllowedIPs = 10.7.0.2/32, fd07::2/128
//	PersistentKeepalive = 25
//
// Interface may also have FwMark, and of wg-quick(8)'s keys Address and MTU. A peer's name is in a
// comment, which other programs ignore, between [Peer] and the first key below it. An error names
// the line, and contains no secret key.
func ParseFile(text string) (*File, error) {
	f := &File{}
	if first := firstLine(text); !strings.HasPrefix(first, "[") {
		return f, f.parseKey(text)
	}
	var peer *PeerConfig
	section, number, nameable := "", 0, false
	for line := range strings.Lines(text) {
		number++
		value, comment, _ := strings.Cut(line, "#")
		value = strings.TrimSpace(value)
		var err error
		switch {
		case value == "":
			err = parseName(peer, comment, nameable)
		case strings.EqualFold(value, "[Interface]"):
			section, peer = "interface", nil
		case strings.EqualFold(value, "[Peer]"):
			section = "peer"
			f.Peers = append(f.Peers, PeerConfig{})
			peer, nameable = &f.Peers[len(f.Peers)-1], true
		case value[0] == '[':
			err = fmt.Errorf("%.20q is not a section: must be [Interface] or [Peer]", value)
		default:
			nameable = false
			key, text, ok := strings.Cut(value, "=")
			key, text = strings.ToLower(strings.TrimSpace(key)), strings.TrimSpace(text)
			switch {
			case !ok || text == "": // it may be a secret key
				err = errors.New("must be a line such as ListenPort = 51820")
			case section == "peer":
				err = peer.parse(key, text)
			default:
				err = f.parse(key, text)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if f.PrivateKey == (SecretKey{}) {
		return nil, errors.New("there is no PrivateKey in the section [Interface]")
	}
	for i := range f.Peers {
		if f.Peers[i].PublicKey == (PublicKey{}) {
			return nil, fmt.Errorf("peer %d of the file has no PublicKey", i+1)
		}
	}
	return f, nil
}

// firstLine returns the first line with anything but a comment.
func firstLine(text string) string {
	for line := range strings.Lines(text) {
		value, _, _ := strings.Cut(line, "#")
		if value = strings.TrimSpace(value); value != "" {
			return value
		}
	}
	return ""
}

func (f *File) parseKey(text string) (err error) {
	f.PrivateKey, err = ParseSecretKey(strings.TrimSpace(text))
	if err != nil {
		return fmt.Errorf("%w; or a configuration that begins with [Interface]", err)
	}
	return nil
}

// parseName takes a peer's name from a comment. Access control may rely on it, so that it must not
// be unclear which peer has it.
func parseName(p *PeerConfig, comment string, nameable bool) error {
	key, name, ok := strings.Cut(comment, "=")
	switch {
	case p == nil || !ok || !strings.EqualFold(strings.TrimSpace(key), "Name"):
		return nil
	case !nameable:
		return errors.New("a peer's name must be between [Peer] and the first key below it")
	case p.Name != "":
		return fmt.Errorf("the peer has the name %s already", p.Name)
	}
	p.Name = strings.TrimSpace(name)
	return CheckName(p.Name)
}

// CheckName returns an error unless a peer can have this name: 1 to 63 letters, digits, dots,
// hyphens and underscores, which are no IP address.
func CheckName(name string) error {
	if _, err := netip.ParseAddr(name); err == nil {
		return fmt.Errorf("%s is an address, and thus not a peer's name", name)
	}
	valid := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_", r)
	}
	if name == "" || len(name) > 63 || strings.ContainsFunc(name, func(r rune) bool { return !valid(r) }) {
		return fmt.Errorf("%.40q is not a peer's name: must be 1 to 63 letters, digits, dots, hyphens and underscores", name)
	}
	return nil
}

// parse parses a line of the section Interface.
func (f *File) parse(key, text string) (err error) {
	switch key {
	case "privatekey":
		if f.PrivateKey, err = ParseSecretKey(text); err != nil {
			return fmt.Errorf("PrivateKey: %w", err)
		}
	case "listenport":
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return fmt.Errorf("ListenPort = %.20s: must be 0 to 65535", text)
		}
		f.Port = uint16(n)
	case "fwmark":
		if strings.EqualFold(text, "off") {
			return nil
		}
		n, err := strconv.ParseUint(text, 0, 32)
		if err != nil {
			return fmt.Errorf("FwMark = %.20s: must be a number of 32 bits, or off", text)
		}
		f.Mark = uint32(n)
	case "mtu":
		if f.MTU, err = strconv.Atoi(text); err != nil || f.MTU <= 0 {
			return fmt.Errorf("MTU = %.20s: must be a number of bytes", text)
		}
	case "address":
		if f.Addrs, err = parsePrefixes(f.Addrs, text); err != nil {
			return fmt.Errorf("key Address: %w", err)
		}
	case "dns", "table", "preup", "postup", "predown", "postdown", "saveconfig":
		return fmt.Errorf("%s is of wg-quick, which sets up an interface: leave it out", key)
	default:
		return fmt.Errorf("%.20q is no key of [Interface]: must be PrivateKey, ListenPort, FwMark, Address or MTU", key)
	}
	return nil
}

// parse parses a line of a section [Peer].
func (p *PeerConfig) parse(key, text string) (err error) {
	switch key {
	case "publickey":
		if p.PublicKey, err = ParsePublicKey(text); err != nil {
			return fmt.Errorf("PublicKey: %w", err)
		}
	case "presharedkey":
		if p.PresharedKey, err = ParseSecretKey(text); err != nil {
			return fmt.Errorf("PresharedKey: %w", err)
		}
	case "endpoint":
		p.Endpoint = text
		return checkEndpoint(text)
	case "allowedips":
		if p.AllowedIPs, err = parsePrefixes(p.AllowedIPs, text); err != nil {
			return fmt.Errorf("AllowedIPs: %w", err)
		}
	case "persistentkeepalive":
		if strings.EqualFold(text, "off") {
			return nil
		}
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return fmt.Errorf("PersistentKeepalive = %.20s: must be a number of seconds, 0 to 65535, or off", text)
		}
		p.Keepalive = time.Duration(n) * time.Second
	default:
		return fmt.Errorf("%.20q is no key of [Peer]: must be PublicKey, PresharedKey, Endpoint, AllowedIPs or PersistentKeepalive", key)
	}
	return nil
}

// parsePrefixes appends the addresses in a list. Without a prefix length, one is a single address.
func parsePrefixes(list []netip.Prefix, text string) ([]netip.Prefix, error) {
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if a, err := netip.ParseAddr(item); err == nil && a.Zone() == "" {
			a = a.Unmap()
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(item)
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%.40q is not an address with a prefix length: must be like 10.7.0.2/32 or fd07::2/128", item)
		}
		list = append(list, p)
	}
	return list, nil
}

// ParsePeer parses a peer of the form [NAME=]KEY[@HOST[:PORT]]. The default port is DefaultPort. A
// peer with an endpoint has a keepalive of DefaultKeepalive.
func ParsePeer(text string) (p PeerConfig, err error) {
	key, endpoint, has := strings.Cut(text, "@")
	if name, rest, ok := strings.Cut(key, "="); ok && rest != "" {
		p.Name, key = name, rest
		if err := CheckName(name); err != nil {
			return p, err
		}
	}
	if p.PublicKey, err = ParsePublicKey(key); err != nil || !has {
		return p, err
	}
	p.Endpoint, p.Keepalive = endpoint, DefaultKeepalive
	if _, _, err := net.SplitHostPort(endpoint); err != nil {
		p.Endpoint = net.JoinHostPort(strings.Trim(endpoint, "[]"), strconv.Itoa(DefaultPort))
	}
	return p, checkEndpoint(p.Endpoint)
}

// DefaultKeepalive is shorter than the time after which NATs forget a UDP flow. ParsePeer sets it.
const DefaultKeepalive = 25 * time.Second
