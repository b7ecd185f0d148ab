// Command repeat runs tests as CI does: one that fails is repeated once, alone, and listed in
// tests/repeated.txt if it passes then.
//
//	go run ./tests/repeat [FLAG OF GO TEST…] PACKAGE…
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/tests/internal/repeat"
)

func main() {
	args := os.Args[1:]
	n := slices.IndexFunc(args, func(a string) bool { return !strings.HasPrefix(a, "-") })
	if n < 0 {
		fmt.Fprintln(os.Stderr, "usage: go run ./tests/repeat [-FLAG=VALUE of go test]... PACKAGE...")
		os.Exit(2)
	}
	if err := (&repeat.Run{Flags: args[:n], Packages: args[n:]}).Do(); err != nil {
		fmt.Fprintln(os.Stderr, "repeat:", err)
		os.Exit(1)
	}
}
