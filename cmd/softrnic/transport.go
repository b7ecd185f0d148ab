package main

import (
	"fmt"
	"strings"

	"github.com/softrnic/softrnic/verbs"
)

// transport is a flag's wire protocol.
type transport struct{ verbs.Transport }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *transport) UnmarshalText(text []byte) error {
	for _, known := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		if strings.EqualFold(string(text), known.String()) {
			t.Transport = known
			return nil
		}
	}
	return fmt.Errorf("%q is no wire protocol: give rocev2 or iwarp", text)
}
