//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// defaultsDir is a directory in which the administrator can set defaults of rsockets (rsocket(7)).
// Each default has a file that contains a number.
const defaultsDir = "/etc/rdma/rsocket"

// rsockDefaults returns the options of new rsockets that the files set. rsocket.Config has the
// other defaults. The files are read once. polling_time and wake_up_interval are ignored: package
// rsocket determines its polling time, and rpoll needs no wake-up.
var rsockDefaults = sync.OnceValue(func() (cfg rsocket.Config) {
	for name, of := range map[string]*int{
		"mem_default": &cfg.RecvBuffer, "wmem_default": &cfg.SendBuffer, "sqsize_default": &cfg.SQSize, "rqsize_default": &cfg.RQSize,
		"inline_default": &cfg.Inline, "iomap_size": &cfg.Iomaps,
	} {
		text, err := os.ReadFile(filepath.Join(defaultsDir, name))
		if err != nil {
			continue // not set
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 32)
		switch {
		case err != nil || n < 0:
			stacks.log.Load().Warn("rsocket: a default is not taken, as its file has no number", "file", filepath.Join(defaultsDir, name))
		case n == 0 && name == "inline_default":
			*of = -1
		default:
			*of = int(n)
		}
	}
	return cfg
})
