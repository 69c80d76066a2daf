/** From a class's entry to a model. */
import type { ClassSpec, ModelEntry } from '../../crds/types.ts';
import { PermanentError } from '../errors.ts';
import { assertIsolation, type SandboxProvider } from '../sandboxes/provider.ts';
import { anthropicModel } from './anthropic.ts';
import type { Model } from './model.ts';
import { parseScript, scriptedModel } from './scripted.ts';

/** A key of a Secret in the install namespace. @throws PermanentError ModelAuthFailed, TransientError */
export type ReadSecret = (name: string, key: string) => Promise<string>;

/** @throws PermanentError NotFound, ProviderNotIsolated, ModelRefused */
export function resolveModel(
  className: string,
  spec: ClassSpec,
  provider: SandboxProvider,
  readSecret: ReadSecret,
): Model {
  const models = spec.models ?? [];
  const wanted = spec.defaultModel ?? models[0]?.name;
  const entry = models.find((m) => m.name === wanted);
  if (entry === undefined)
    throw new PermanentError('NotFound', `class ${className} has no model; add one to its spec.models`);
  assertIsolation(provider, entry);
  return modelOf(entry, readSecret);
}

function modelOf(entry: ModelEntry, readSecret: ReadSecret): Model {
  switch (entry.provider) {
    case 'Scripted':
      // A script in a ConfigMap was put here by the operator when it mirrored the class.
      return scriptedModel(entry.name, parseScript(entry.name, entry.script ?? '[]'));
    case 'Anthropic': {
      const { apiKeySecret } = entry;
      return anthropicModel({
        name: entry.name,
        model: entry.model ?? entry.name,
        apiKey: () => {
          if (apiKeySecret === undefined)
            throw new PermanentError('ModelAuthFailed', `model ${entry.name} names no apiKeySecret`);
          return readSecret(apiKeySecret.name, apiKeySecret.key);
        },
        ...(entry.baseURL === undefined ? {} : { baseURL: entry.baseURL }),
        ...(entry.maxOutputTokens === undefined ? {} : { maxOutputTokens: entry.maxOutputTokens }),
      });
    }
  }
}
