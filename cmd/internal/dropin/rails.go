package dropin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// RailSpec describes a rail by the texts of SOFTRNIC_LINK, SOFTRNIC_ADDR and SOFTRNIC_DEVICE. An
// empty text is the default.
type RailSpec struct{ Link, Addr, Device string }

// RailVariable returns the name of the variable that describes a rail by itself: SOFTRNIC_RAIL_0
// and so on. A container gets such a variable from each of its devices.
func RailVariable(rail int) string { return "SOFTRNIC_RAIL_" + strconv.Itoa(rail) }

// Value returns the value of a rail's variable.
func (r RailSpec) Value() string {
	link := r.Link
	if link == "" {
		link = defaultLink
	}
	text := "link=" + link
	if r.Addr != "" {
		text += ";addr=" + r.Addr
	}
	if r.Device != "" {
		text += ";device=" + r.Device
	}
	return text
}

// parseRail is the inverse of Value.
func parseRail(value string) (r RailSpec, err error) {
	for part := range strings.SplitSeq(value, ";") {
		name, text, ok := strings.Cut(strings.TrimSpace(part), "=")
		field, known := map[string]*string{"link": &r.Link, "addr": &r.Addr, "device": &r.Device}[name]
		if !ok || !known {
			return r, fmt.Errorf("%q: must be link=LINK, addr=ADDRESSES or device=NAMES, separated by semicolons", part)
		}
		*field = text
	}
	return r, nil
}

// readRails replaces Link, Addr and Device by the variables of rails, if there are any.
func (s *Settings) readRails(getenv func(string) string) error {
	var links, addrs, devices []string
	for i := range MaxRails {
		value := getenv(RailVariable(i))
		if value == "" {
			continue
		}
		r, err := parseRail(value)
		if err != nil {
			return fmt.Errorf("%s: %w", RailVariable(i), err)
		}
		if r.Device == "" && s.Card == "" { // a card names its devices
			r.Device = NumberedDevices("", i)
		}
		links, addrs, devices = append(links, strings.TrimSpace(r.Link)), append(addrs, r.Addr), append(devices, r.Device)
	}
	switch {
	case links == nil:
		return nil
	case len(links) > 1 && slices.Contains(links, AllInterfaces):
		return fmt.Errorf("link=%s is a rail for each interface: it must be the only one of %s to %s", AllInterfaces, RailVariable(0),
			RailVariable(MaxRails-1))
	}
	replaced := map[string]string{"SOFTRNIC_LINK": strings.Join(links, ";"), "SOFTRNIC_ADDR": strings.Join(addrs, ";"),
		"SOFTRNIC_DEVICE": strings.Join(devices, ";")}
	s.Link, s.Addr, s.Device = "", nil, ""
	return s.read(func(name string) string { return replaced[name] })
}
