package rdmatransport

import "github.com/softrnic/softrnic/stack"

// Provider is the type of the provider that Open creates, for tests that wrap it.
type Provider = *provider

// NewProvider makes a provider and leaves it to the test to open it.
func NewProvider(host stack.Network, cfg *Config) (Provider, error) {
	return newProvider(host, cfg)
}
