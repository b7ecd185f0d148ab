//go:build !linux && !darwin && !windows

package tap

import "github.com/songgao/water"

const advice = "TAP interfaces are not supported on this system: use package pipe"

func platform(string) water.PlatformSpecificParams { return water.PlatformSpecificParams{} }
