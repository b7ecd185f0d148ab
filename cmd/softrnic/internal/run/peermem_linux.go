package run

import (
	"cmp"
	"os"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/namespace"
)

// By this file NCCL, UCX, NVSHMEM and others know that cards reach the memory of NVIDIA's GPUs.
const peermem = namespace.Module + "/nvidia_peermem/version"

// addPeermem adds the file of NVIDIA's kernel module for cards, if the settings or the machine's
// GPU ask for it. The kernel's own file stays.
func (t *tree) addPeermem(s *dropin.Settings) {
	show := hasGPU()
	if s.Peermem != nil {
		show = *s.Peermem
	}
	if _, err := os.Stat("/" + peermem); !show || err == nil {
		return
	}
	version, _ := os.ReadFile("/" + namespace.Module + "/nvidia/version") // absent in WSL
	t.files[peermem] = cmp.Or(strings.TrimSpace(string(version)), "1.0")
}

// hasGPU reports whether NVIDIA's driver is on this machine.
func hasGPU() bool {
	for _, file := range []string{"/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1"} {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return false
}
