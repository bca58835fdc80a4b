# SPDX-License-Identifier: Apache-2.0
"""icms for vLLM, named in `--kv-transfer-config`; nothing of vLLM is changed.

`icms.vllm.tier:IcmsTier` is a secondary tier of vLLM's own OffloadingConnector; `icms.vllm.connector:
IcmsConnector` is a KV connector by itself. Importing this package imports neither vLLM nor PyTorch;
its modules `tier` and `connector` are imported by vLLM.
"""
